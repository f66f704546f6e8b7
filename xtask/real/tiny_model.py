"""Writes a tiny Llama with random weights and a byte-level tokenizer as a Hugging Face folder.

usage: tiny_model.py OUT
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

out = sys.argv[1]
VOCABULARY = 512
TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"

bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.train_from_iterator(
    ["a small corpus of plain words is all that this tokenizer ever gets to see " * 50],
    trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ),
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=bpe,
    bos_token="<|endoftext|>",
    eos_token="<|im_end|>",
    pad_token="<|endoftext|>",
)
tokenizer.chat_template = (
    "{% for m in messages %}" + TURN + "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
tokenizer.save_pretrained(out)

torch.manual_seed(7)
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=4096,
    bos_token_id=0,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=True,
    torch_dtype="bfloat16",
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
