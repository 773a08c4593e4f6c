"""Serves a model in GGUF with llama.cpp: local_model_server.py WEIGHTS. One thread, since more are slower on a busy machine."""

import signal
import socket
import sys

import xllamacpp

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 4096
params.n_parallel = 1
params.cpuparams.n_threads = 1
params.hostnames = ["127.0.0.1"]
params.port = port
params.use_jinja = True
server = xllamacpp.Server(params)
print(f"listening on http://127.0.0.1:{port}", flush=True)
signal.pause()
