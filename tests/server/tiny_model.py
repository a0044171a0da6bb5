"""A real, tiny language model behind an OpenAI-compatible server; run with its packages' folder and its file.

It prints its address and serves until its stdin ends.
"""

import sys

sys.path.insert(0, sys.argv[1])

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[2]
params.n_ctx, params.n_parallel, params.n_predict = 8192, 1, 64
params.hostnames, params.port = ["127.0.0.1"], 0
params.warmup, params.use_jinja = False, True
server = xllamacpp.Server(params)
sys.stdout.write(server.listening_address + "\n")
sys.stdout.flush()
sys.stdin.read()
