"""Turns a GGUF file into a Hugging Face folder, so that engines that read no GGUF serve real words.

usage: dequantise.py GGUF OUT
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

gguf = pathlib.Path(sys.argv[1])
out = pathlib.Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)

source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
AutoTokenizer.from_pretrained(**source).save_pretrained(out)
model = AutoModelForCausalLM.from_pretrained(**source, torch_dtype="bfloat16")

# The output layer shares the embedding's weights.
weights = {
    name: tensor.to(torch.bfloat16).contiguous().clone()
    for name, tensor in model.state_dict().items()
    if name != "lm_head.weight"
}
save_file(weights, out / "model.safetensors", metadata={"format": "pt"})

config = model.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
config.tie_word_embeddings = True
config.architectures = ["LlamaForCausalLM"]
config.save_pretrained(out)
