"""What speculation gives: the same requests to an engine with it and to one without, in turns.

python -m tests.bench.speculation [--drafter DIRECTORY] [--rounds 3] [--speculate 15] [--batches 1 16]
[--new-tokens 160] [--quantize int8] [--temperature 0] [--sets copy quote code json schema free]

What drafts is n-gram, or what `--drafter`, a directory, has learnt for the default model.

The answers of both are compared too: they must be the same, token for token.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from convert.cache import cache_root
from convert.source import open_model
from gateway.text.tokenizer import Tokenizer
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.grammar.grammar import Grammar
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine
from tests.bench.machine import described
from tests.bench.table import markdown

COLUMNS = ("answers", "batch", "tok/s", "without", "ratio", "seen", "tokens a step and row", "right guesses", "equal")
HERE = Path(__file__).parent
PROSE = (HERE / "time_machine.txt").read_text()
CODE = "\n\n\n".join((HERE / name).read_text() for name in ("adapters.py", "engine.py", "gateway.py", "loading.py"))
ALIKE = 8  # prompts of a set
SCHEMA = {  # of the answers of one set
    "type": "object",
    "properties": {
        "scientific_name": {"type": "string", "maxLength": 30},
        "is_suitable_for_children": {"type": "boolean"},
        "approximate_age_in_years": {"type": "integer", "minimum": 0, "maximum": 9999},
        "short_description": {"type": "string", "maxLength": 60},
        "category_of_interest": {"enum": ["nature_and_science", "technology_and_industry", "arts_and_culture"]},
    },
    "required": ["scientific_name", "is_suitable_for_children", "approximate_age_in_years", "short_description"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # the model would write newlines
}
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}"


def prompts(tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    """Of each set, ids; the first are expected to be answered with the most repetition."""
    prose = [PROSE[i * 2000 :][:1000] for i in range(ALIKE)]
    code = [CODE[i * 1500 :][:1000] for i in range(ALIKE)]
    things = ("cities", "planets", "computer languages", "fruits", "rivers", "painters", "birds", "mountains")
    wishes = (
        "Write a story about a sailor who finds an island.",
        "Explain how a car engine works.",
        "What is the best way to learn to play the piano?",
        "Describe a sunset over the sea in the style of a novel.",
        "Why is the sky blue? Explain it to a child.",
        "Write a letter to a friend about a trip to the mountains.",
        "What did people eat in the Middle Ages?",
        "Give me advice for my first day in a new job.",
    )
    asked = {
        "copy": [f"Repeat this text word by word:\n\n{text}" for text in prose],
        "quote": [f"Summarise this text, and quote its most important sentences:\n\n{text}" for text in prose],
        "code": [
            f"Add a comment to each function and print all of the code:\n\n```python\n{text}\n```" for text in code
        ],
        "json": [f"List ten {each} as a JSON array of objects with name, description and rank." for each in things],
        "schema": [f"Describe {each} by the fields of the form." for each in things],
        "free": list(wishes),
    }
    begun = {"copy": [text[:200] for text in prose], "code": ["```python\n" + text[:100] for text in code]}
    return {
        name: [
            tokenizer.encode(CHAT.format(text, answer), add_special_tokens=False)
            for text, answer in zip(texts, begun.get(name, [""] * ALIKE), strict=True)
        ]
        for name, texts in asked.items()
    }


def answered(
    engine: Engine, asked: list[list[int]], params: SamplingParams, grammar: Grammar | None = None
) -> tuple[float, list[list[int]]]:
    """Seconds from the last request's first token to the last token, and the tokens of each."""
    answers: list[list[int]] = [[] for _ in asked]
    for number, ids in enumerate(asked):
        engine.submit(Request(number, ids, params, grammar=grammar))
    began = last = time.perf_counter()
    while engine.live or engine.inbox:
        result = engine.step()
        last = time.perf_counter()
        for event in result.events if result else ():
            began = last if event.first else began
            answers[event.request_id] += [token.id for token in event.tokens]
    return last - began, answers


def compared(
    engines: list[Engine], name: str, asked: list[list[int]], batch: int, rounds: int, params: SamplingParams
) -> list[str]:
    """A row of the table: every group of `batch` prompts, so many times."""
    grammar = Grammar("json_schema", json.dumps(SCHEMA)) if name == "schema" else None
    groups = [asked[i : i + batch] for i in range(0, len(asked), batch)]
    speculator = engines[0].speculator
    assert speculator is not None
    speculator.start_counting()
    times: list[list[float]] = []  # of each round, with and without
    equal, tokens = 0, 0
    for _ in range(rounds):
        total = [0.0, 0.0]
        for group in groups:
            pairs = [answered(engine, group, params, grammar) for engine in engines]
            equal += sum(ours == plain for ours, plain in zip(pairs[0][1], pairs[1][1], strict=True))
            tokens += sum(map(len, pairs[0][1]))
            total = [before + seconds for before, (seconds, _) in zip(total, pairs, strict=True)]
        times.append(total)
    ratios = sorted(plain / ours for ours, plain in times)
    rates = [tokens / rounds / median(each) for each in zip(*times, strict=True)]
    right = sum(speculator.accepted)
    return [
        name,
        str(batch),
        *(f"{rate:.1f}" for rate in rates),
        f"{median(ratios):.2f}",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        f"{tokens / (tokens - right):.2f}",
        f"{right} of {speculator.draft_tokens}",
        f"{equal} of {rounds * len(asked)}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speculation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speculate", type=int, help="15 by n-gram, else as many as the drafter guesses")
    parser.add_argument("--drafter")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--quantize", help="of both engines")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--sets", nargs="*", help="all if not given")
    options = parser.parse_args()
    enable_compile_cache(compile_cache_in(cache_root()))
    model = open_model(None, drafter=options.drafter)
    most = options.speculate or (None if options.drafter else 15)
    engines = []
    for speculate in (most, 0):
        chosen = EngineOptions(
            speculate=speculate, quantize=options.quantize, prefix_cache=False, max_batch_size=max(options.batches)
        )
        engines.append(load_engine(model, chosen))
        engines[-1].finish_compiling()
    params = SamplingParams(temperature=options.temperature, max_tokens=options.new_tokens, seed=0)
    sets = prompts(Tokenizer.load(model.directory))
    for engine in engines:
        answered(engine, sets["free"], params)  # warms up
    rows = [
        compared(engines, name, sets[name] * max(1, batch // ALIKE), batch, options.rounds, params)
        for name in options.sets or sets
        for batch in options.batches
    ]
    most = engines[0].description.max_draft_tokens
    print(f"{described()}, up to {most} guesses, medians of {options.rounds} rounds\n")
    print(markdown(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
