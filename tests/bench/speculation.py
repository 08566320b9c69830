"""What speculation gives: the same requests to engines with it and to one without, in turns.

python -m tests.bench.speculation [--methods ngram suffix] [--drafter DIRECTORY] [--rounds 3] [--speculate 15]
[--batches 1 16] [--new-tokens 160] [--quantize int8] [--temperature 0]
[--sets copy quote code json schema free tables classes pages again] [--suffix '{"suffix_decoding_max_spec_factor": 4}']

What drafts is n-gram unless `--methods` says otherwise, or what `--drafter`, a directory, has learnt for the default
model. Answers of a round are not known in the next one.

The answers of all are compared too: they must be the same, token for token.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from convert.cache import cache_root
from convert.source import open_model
from gateway.benchmark.markdown import table
from gateway.text.tokenizer import Tokenizer
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.grammar.grammar import Grammar
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.speculation.speculator import Speculator
from jaxengine.startup.build import load_engine
from tests.bench.machine import described

COLUMNS = (
    "answers",
    "batch",
    "drafts by",
    "tok/s",
    "without",
    "ratio",
    "seen",
    "tokens a step and row",
    "right guesses",
    "equal",
)
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
    """Of each set, ids; the first are expected to repeat themselves the most, the last one another."""
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
    names = ("customers", "orders", "products", "employees", "suppliers", "invoices", "payments", "shipments")
    shops = ("bakery", "bookshop", "florist", "barber", "bicycle shop", "toy shop", "cafe", "pharmacy")
    asked = {
        "copy": [f"Repeat this text word by word:\n\n{text}" for text in prose],
        "quote": [f"Summarise this text, and quote its most important sentences:\n\n{text}" for text in prose],
        "code": [
            f"Add a comment to each function and print all of the code:\n\n```python\n{text}\n```" for text in code
        ],
        "json": [f"List ten {each} as a JSON array of objects with name, description and rank." for each in things],
        "schema": [f"Describe {each} by the fields of the form." for each in things],
        "free": list(wishes),
        "tables": [f"Write a SQL script that creates a table of {each} and inserts five rows." for each in names],
        "classes": [f"Write a Python class for {each} with getters and setters." for each in names],
        "pages": [f"Write an HTML page for a {each}." for each in shops],
        "again": list(wishes[: ALIKE // 2] * 2),
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
    while engine.requests.live or engine.requests.inbox:
        result = engine.step()
        last = time.perf_counter()
        for event in result.events if result else ():
            began = last if event.first else began
            answers[event.request_id] += [token.id for token in event.tokens]
    return last - began, answers


def compared(
    engines: dict[str, Engine], name: str, asked: list[list[int]], batch: int, rounds: int, params: SamplingParams
) -> list[list[str]]:
    """Rows of the table: every group of `batch` prompts, so many times. The last engine has no drafts."""
    grammar = Grammar("json_schema", json.dumps(SCHEMA)) if name == "schema" else None
    groups = [asked[i : i + batch] for i in range(0, len(asked), batch)]
    times: list[list[float]] = []  # of each round, by engine
    equal, tokens = [0] * len(engines), 0
    start_counting(engines)
    for _ in range(rounds):
        total = [0.0] * len(engines)
        forget_answers(engines)
        for group in groups:
            told = [answered(engine, group, params, grammar) for engine in engines.values()]
            for i, (seconds, answers) in enumerate(told):
                total[i] += seconds
                equal[i] += sum(ours == plain for ours, plain in zip(answers, told[-1][1], strict=True))
            tokens += sum(map(len, told[-1][1]))
        times.append(total)
    rows = []
    for i, (method, engine) in enumerate(engines.items()):
        if engine.speculator is not None:
            figures = speeds([(each[i], each[-1]) for each in times], tokens)
            same = f"{equal[i]} of {rounds * len(asked)}"
            rows.append([name, str(batch), method, *figures, *guesses(engine.speculator, tokens), same])
    return rows


def start_counting(engines: dict[str, Engine]) -> None:
    for engine in engines.values():
        if engine.speculator is not None:
            engine.speculator.start_counting()


def forget_answers(engines: dict[str, Engine]) -> None:
    for engine in engines.values():
        if engine.speculator is not None and engine.speculator.answers is not None:
            engine.speculator.answers.answers.clear()


def speeds(times: list[tuple[float, float]], tokens: int) -> list[str]:
    """Of each round the seconds with and without drafts: tokens per second with and without, and how they compare."""
    ratios = sorted(plain / ours for ours, plain in times)
    rates = [tokens / len(times) / median(each) for each in zip(*times, strict=True)]
    return [*(f"{rate:.1f}" for rate in rates), f"{median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]


def guesses(speculator: Speculator, tokens: int) -> list[str]:
    """Tokens a step and row, and how many guesses were right."""
    right = sum(speculator.accepted)
    return [f"{tokens / (tokens - right):.2f}", f"{right} of {speculator.draft_tokens}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speculation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speculate", type=int, help="15 by n-gram, else as many as the drafter guesses")
    parser.add_argument("--methods", nargs="*", default=["ngram"], choices=["ngram", "suffix"])
    parser.add_argument("--suffix", type=json.loads, default={}, help="more fields of that method, as JSON")
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
    methods = ["learnt"] if options.drafter else options.methods
    engines = {}
    for method in (*methods, "none"):
        own = options.suffix if method == "suffix" else {}
        config = {"method": method, "num_speculative_tokens": most, **own} if method in options.methods else None
        engines[method] = load_engine(
            model,
            EngineOptions(
                speculate=0 if method == "none" else most,
                speculative_config=json.dumps(config) if config else None,
                quantize=options.quantize,
                prefix_cache=False,
                max_batch_size=max(options.batches),
            ),
        )
        engines[method].finish_compiling()
    params = SamplingParams(temperature=options.temperature, max_tokens=options.new_tokens, seed=0)
    sets = prompts(Tokenizer.load(model.directory))
    for engine in engines.values():
        answered(engine, sets["free"], params)  # warms up
    rows = [
        row
        for name in options.sets or sets
        for batch in options.batches
        for row in compared(engines, name, sets[name] * max(1, batch // ALIKE), batch, options.rounds, params)
    ]
    most = next(iter(engines.values())).description.max_draft_tokens
    print(f"{described()}, up to {most} guesses, medians of {options.rounds} rounds\n")
    print(table(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
