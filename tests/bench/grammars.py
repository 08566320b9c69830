"""What grammars cost: decoding with and without them, the first token, and the masks.

Decoding: all rows under a schema whose text does not end, beside the same rows without it, in turns. First token: a
short prompt without a grammar, with one that was seen before, and with one that is new. Masks: of llguidance over the
vocabulary of a `tokenizer.json`, in one thread, at every token of documents.
"""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from convert.cache import cache_root
from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.source import LIMITS, library_text
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine

DECODE_COLUMNS = ("default model, rows under a JSON schema", "decode tok/s", "without", "ratio", "seen")
FIRST_COLUMNS = ("first token of a prompt of 32 tokens", "ms p50", "p90", "later than without")
MASK_COLUMNS = ("mask of a row", "ids", "tokens", "µs p50", "p99", "longest")
PROMPT = 32  # tokens
FIRSTS = 30  # requests of each kind

# A list that does not end before its tokens do.
ENDLESS: dict[str, Any] = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
        },
        "required": ["name", "age", "tags", "email"],
        "additionalProperties": False,
    },
}
GUIDED = {"x-guidance": {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}}


def schema(fields: dict[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps({**fields, **GUIDED}))


def load(max_batch_size: int) -> Engine:
    enable_compile_cache(compile_cache_in(cache_root()))
    engine = load_engine(
        open_model(None), EngineOptions(dtype="float32", prefix_cache=False, max_batch_size=max_batch_size)
    )
    engine.finish_compiling()
    engine.constraints.start()
    return engine


def decode(engine: Engine, batches: Sequence[int], rounds: int, new_tokens: int) -> list[list[str]]:
    """One row a batch size. Decoding is what `new_tokens` take beyond the first."""
    rows = []
    for batch in batches:
        seconds = []
        for number in range(rounds + 1):
            pair = [
                _decoding(engine, batch, new_tokens, grammar)
                for grammar in (schema(ENDLESS), None)[:: 1 - 2 * (number % 2)]
            ]
            seconds.append(pair[:: 1 - 2 * (number % 2)])
        rows.append(_decode_row(batch, batch * (new_tokens - 1), seconds[1:]))  # the first warms up
    return rows


def _decoding(engine: Engine, batch: int, new_tokens: int, grammar: Grammar | None) -> float:
    """Seconds from the step that gave the last row its first token to the last token."""
    params = SamplingParams(temperature=1.0, max_tokens=new_tokens, ignore_eos=grammar is None, seed=0)
    chance = np.random.default_rng(0)
    for i in range(batch):
        engine.submit(Request(i, chance.integers(100, 40_000, PROMPT).tolist(), params, grammar=grammar))
    first: set[int] = set()
    began = time.perf_counter()
    while not (engine.idle and not engine.preparing):
        result = engine.step()
        for event in result.events if result else ():
            first.add(event.request_id)
            if len(first) == batch and event.first:
                began = time.perf_counter()
    return time.perf_counter() - began


def _decode_row(batch: int, tokens: int, seconds: list[list[float]]) -> list[str]:
    bound, free = (tokens / median(each) for each in zip(*seconds, strict=True))
    ratios = sorted(b / a for a, b in seconds)
    name = f"float32, batch {batch}"
    return [name, f"{bound:.1f}", f"{free:.1f}", f"{median(ratios):.3f}", f"{ratios[0]:.3f} to {ratios[-1]:.3f}"]


def first_tokens(engine: Engine) -> list[list[str]]:
    """Requests that come alone, of each kind in turn."""
    numbers = itertools.count(1)
    kinds: dict[str, list[float]] = {"without a grammar": [], "with one seen before": [], "with a new one": []}
    _first(engine, schema(_ordinary(0)))
    for _ in range(FIRSTS):
        kinds["without a grammar"].append(_first(engine, None))
        kinds["with one seen before"].append(_first(engine, schema(_ordinary(0))))
        kinds["with a new one"].append(_first(engine, schema(_ordinary(next(numbers)))))
    base = median(kinds["without a grammar"])
    return [
        [name, f"{median(each):.1f}", f"{quantiles(each, n=10)[-1]:.1f}", f"{median(each) - base:+.1f}"]
        for name, each in kinds.items()
    ]


def _ordinary(number: int) -> dict[str, Any]:
    """A schema of 12 fields, of which there is one for each number."""
    person = ENDLESS["items"]["properties"]
    nested = {"type": "object", "properties": person, "required": list(person), "additionalProperties": False}
    fields = {
        **person,
        "address": nested,
        f"field_{number}": {"type": "string"},
        "more": {"type": "array", "items": nested},
    }
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _first(engine: Engine, grammar: Grammar | None) -> float:
    """Milliseconds to the first token of a request that is alone."""
    params = SamplingParams(temperature=0, max_tokens=2, seed=0)
    prompt = np.random.default_rng(1).integers(100, 40_000, PROMPT).tolist()
    began, found = time.perf_counter(), 0.0
    engine.submit(Request(1, prompt, params, grammar=grammar))
    while not (engine.idle and not engine.preparing):
        if engine.idle:  # a grammar, on another thread
            time.sleep(0.0002)
        result = engine.step() if not engine.idle else None
        if result and not found and any(event.tokens for event in result.events):
            found = time.perf_counter() - began
    return found * 1e3


def masks(tokenizer_json: Path | None) -> list[list[str]]:
    """Of the default model's vocabulary if none is named."""
    path = tokenizer_json or Path(open_model(None).directory) / "tokenizer.json"
    tokenizer = LLTokenizer(path.read_text())
    cases = {
        "JSON schema, 12 fields": (schema(_ordinary(0)), _document(_ordinary(0))),
        "any JSON object": (schema({"type": "object"}), _document(_ordinary(0))),
        "regex, a date and an e-mail": (
            Grammar("regex", r"\d{4}-\d\d-\d\d [a-z0-9._]+@[a-z0-9-]+\.(com|org)"),
            "2024-02-29 some.body@example.org",
        ),
    }
    return [_mask_row(name, tokenizer, *case) for name, case in cases.items()]


def _document(fields: dict[str, Any]) -> str:
    person = {"name": "Mary Ann O'Neill", "age": 42, "tags": ["red", "blue"], "email": "mary@example.org"}
    return json.dumps({**person, "address": person, "field_0": "some text, as models write it", "more": [person] * 4})


def _mask_row(name: str, tokenizer: LLTokenizer, grammar: Grammar, document: str) -> list[str]:
    """Of each position, the best of five turns: what other work on the machine takes is not of the mask."""
    ids = tokenizer.tokenize_str(document)
    mask = np.zeros((1, -(-tokenizer.vocab_size // 32)), np.int32)
    turns = []
    for _ in range(5):
        matcher = LLMatcher(tokenizer, library_text(grammar), limits=LIMITS, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        fill_next_token_bitmask(matcher.deep_copy(), mask)  # the first of a grammar is computed before it is served
        seconds = []
        for id in ids:
            began = time.perf_counter()
            fill_next_token_bitmask(matcher, mask)
            seconds.append(time.perf_counter() - began)
            assert matcher.consume_token(id), (name, document)
        turns.append(seconds)
    best = sorted(min(each) * 1e6 for each in zip(*turns, strict=True))
    return [
        name,
        f"{tokenizer.vocab_size:,}",
        str(len(ids)),
        f"{median(best):.0f}",
        f"{quantiles(best, n=100, method='inclusive')[98]:.0f}",
        f"{best[-1]:.0f}",
    ]
