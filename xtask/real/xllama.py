"""Serves a GGUF model with llama.cpp's own HTTP server, which the xllamacpp wheel embeds.

usage: xllama.py MODEL PORT
"""

import signal
import sys

import xllamacpp

model, port = sys.argv[1:3]
params = xllamacpp.CommonParams()
params.model.path = model
params.model_alias = {"smollm2"}
params.hostnames = ["127.0.0.1"]
params.port = int(port)
params.n_ctx = 4096
params.n_parallel = 4
params.endpoint_metrics = True
# More threads spin at barriers, which takes seconds per token on a machine that has others to run.
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1

server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
signal.pause()
