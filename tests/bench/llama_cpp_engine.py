"""llama.cpp as `xllamacpp` has it, for `tests.bench.peers`: a line of JSON for each batch, and one for its answer.

The command's argument says which model to load, in JSON. The first line tells what the build uses of the processor.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp

job = json.loads(sys.argv[1])
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # its own words go where errors go

params = xllamacpp.CommonParams()
params.model.path = job["model"]
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
params.n_parallel = job["slots"]
params.n_ctx = job["tokens"]
params.kv_unified = True
params.cache_prompt = False
params.verbosity = 0
server = xllamacpp.Server(params)


def answer(made: Any) -> None:
    print(json.dumps(made), file=answers, flush=True)


def completed(prompt: list[int], new_tokens: int) -> int:
    """How many tokens it made."""
    made = server.handle_completions(
        {"prompt": prompt, "n_predict": new_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    )
    return int((made if isinstance(made, dict) else json.loads(made))["timings"]["predicted_n"])


answer(xllamacpp.get_system_info())
with ThreadPoolExecutor(job["slots"]) as pool:
    for line in sys.stdin:
        asked = json.loads(line)
        answer(list(pool.map(completed, asked["prompts"], [asked["new_tokens"]] * len(asked["prompts"]))))
