"""One command, one table: our engine against a peer, the cost of grammars, and the gateway against a mock engine.

python -m tests.bench [--peer llama.cpp] [--rounds 5] [--batches 1 4 16] [--new-tokens 64] [--prompts 128 1024]
[--dtype bfloat16] [--quantize int8] [--tokenizer FILE] [--skip-engine] [--skip-grammars] [--skip-gateway]

To compare two versions of the code, run it in turns from both trees (PYTHONPATH=TREE python -m tests.bench --rounds 1):
each ratio to the peer is taken within a round, so it can be compared where rates drift.
"""

import argparse
import sys
from pathlib import Path

from gateway.benchmark.markdown import table
from jaxengine.options.table import EngineOptions
from tests.bench import engine, gateway, grammars, peers
from tests.bench.machine import described


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--peer", choices=peers.NAMES, default=peers.NAMES[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16], help="rows that decode together")
    parser.add_argument("--new-tokens", type=int, default=64, help="of each row")
    parser.add_argument("--prompts", type=int, nargs="*", default=[128, 1024], help="tokens of a lone prompt")
    parser.add_argument("--dtype", default="float32", help="of our engine; transformers computes in float32")
    parser.add_argument("--quantize", help="of our engine")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to compute masks for")
    parser.add_argument("--skip-engine", action="store_true")
    parser.add_argument("--skip-grammars", action="store_true")
    parser.add_argument("--skip-gateway", action="store_true")
    options = parser.parse_args()
    print(f"{described()}, medians of {options.rounds} rounds\n")
    if not options.skip_engine:
        chosen = EngineOptions(dtype=options.dtype, quantize=options.quantize, prefix_cache=False, max_batch_size=16)
        batch, longest = max(options.batches, default=1), max([engine.PROMPT + options.new_tokens, *options.prompts])
        with engine.Contenders.load(chosen, options.peer, batch, longest + 1) as contenders:
            if options.batches:
                decoded = engine.decode(contenders, options.batches, options.rounds, options.new_tokens)
                print(table(contenders.decode_columns, decoded), "\n", flush=True)
            if options.prompts:
                prefilled = engine.prefill(contenders, options.prompts, options.rounds)
                print(table(contenders.prefill_columns, prefilled), "\n", flush=True)
    if not options.skip_grammars:
        constrained = grammars.load(max_batch_size=16)
        decoded = grammars.decode(constrained, options.batches, options.rounds, options.new_tokens)
        print(table(grammars.DECODE_COLUMNS, decoded), "\n", flush=True)
        print(table(grammars.FIRST_COLUMNS, grammars.first_tokens(constrained)), "\n", flush=True)
        print(table(grammars.MASK_COLUMNS, grammars.masks(options.tokenizer)), "\n", flush=True)
    if not options.skip_gateway:
        print(table(gateway.COLUMNS, gateway.measure(rounds=options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
