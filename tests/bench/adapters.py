"""What adapters cost: the same rows with and without them, in turns, in one engine.

python -m tests.bench.adapters [--rounds 5] [--rank 16] [--slots 16]

The adapters are random and change every matrix of every layer.
"""

import argparse
import sys
import time
from statistics import median

import numpy as np

from convert.cache import cache_root
from convert.source import open_model
from gateway.benchmark.markdown import table
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine
from tests.bench.machine import described
from tests.random_adapters import random_adapter

COLUMNS = ("default model", "tok/s", "without", "ratio", "seen")
CASES = ((1, 1), (4, 4), (16, 16), (16, 8), (16, 4), (16, 1))  # rows that decode together, and adapters of theirs
PROMPT, LONG, NEW = 32, 1024, 64  # tokens


def load(slots: int, rank: int) -> Engine:
    enable_compile_cache(compile_cache_in(cache_root()))
    model = open_model(None)
    options = EngineOptions(
        prefix_cache=False, max_batch_size=16, enable_lora=True, max_loras=slots, max_lora_rank=rank
    )
    engine = load_engine(model, options)
    engine.finish_compiling()
    assert model.adapters is not None
    for seed in range(slots):
        weights = random_adapter(model.adapters.targets, model.source.spec, rank, seed)
        engine.adapter_registry.load(str(seed), "random", weights=weights)
    return engine


def seconds(engine: Engine, rows: int, adapters: int, prompt: int, new: int) -> float:
    """From the first step to the last token."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, seed=0)
    chance = np.random.default_rng(0)
    for i in range(rows):
        ids = chance.integers(100, 40_000, prompt).tolist()
        engine.submit(Request(i, ids, params, adapter=str(i % adapters) if adapters else ""))
    began = time.perf_counter()
    while not engine.idle:
        engine.step()
    return time.perf_counter() - began


def compared(engine: Engine, rows: int, adapters: int, rounds: int, prompt: int, new: int) -> list[str]:
    """Rates beyond the first token, or of the prompt where no more is asked for."""
    tokens = rows * (new - 1) or prompt
    pairs = []
    for _ in range(rounds + 1):
        pair = []
        for number in (adapters, 0):
            first = seconds(engine, rows, number, prompt, 1) if new > 1 else 0.0
            pair.append(seconds(engine, rows, number, prompt, new) - first)
        pairs.append(pair)
    pairs = pairs[1:]  # the first warms up
    rates = [tokens / median(each) for each in zip(*pairs, strict=True)]
    ratios = sorted(without / with_them for with_them, without in pairs)
    what = f"batch {rows}, {adapters} adapters" if new > 1 else f"a prompt of {prompt} tokens, {adapters} adapters"
    return [what, *(f"{rate:.1f}" for rate in rates), f"{median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.adapters", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--slots", type=int, default=16)
    options = parser.parse_args()
    engine = load(options.slots, options.rank)
    rows = [compared(engine, *case, options.rounds, PROMPT, NEW) for case in CASES]
    rows.append(compared(engine, 1, 1, options.rounds, LONG, 1))
    print(f"{described()}, rank {options.rank}, {options.slots} slots, medians of {options.rounds} rounds\n")
    print(table(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
