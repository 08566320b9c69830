"""Small real engines and the few verbs every engine test uses: load one, ask it, serve until nothing is left.

`serve` checks what holds whatever was asked: each accepted request ends exactly once, nothing comes after its end, its
tokens are delivered once, and an idle engine holds no page, slot or request.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar, Reasoning
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.pooling import Pooling
from jaxengine.options.table import EngineOptions
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Beam, Event, FinishReason, Token
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Logits, Request
from jaxengine.startup.build import load_engine
from tests.jaxengine.shared_executables import shared_executables
from tests.tiny import BOS, VOCAB

EngineOf = Callable[..., Engine]


@dataclass
class Answer:
    """Everything one request was told."""

    tokens: list[Token] = field(default_factory=list)
    finish: FinishReason = FinishReason.NOT_FINISHED
    error: str = ""
    cached_tokens: int = 0
    prompt: list[Token] = field(default_factory=list)
    beams: list[Beam] = field(default_factory=list)
    embedding: bytes = b""
    logits: bytes = b""
    surprises: list[float] = field(default_factory=list)  # mirostat's, of each event that told one

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


Answers = dict[int, Answer]


class Named:
    """`executables`, noting the names that are called."""

    def __init__(self, executables: Any) -> None:
        self.executables = executables
        self.called: list[Any] = []

    def __contains__(self, name: Any) -> bool:
        return name in self.executables

    def __getitem__(self, name: Any) -> Any:
        self.called.append(name)
        return self.executables[name]


def load(
    directory: Path,
    *,
    every_bucket: bool = False,
    at_once: bool = False,
    adapters: Mapping[str, Path] | None = None,
    **options: object,
) -> Engine:
    """An engine with few buckets, the largest only unless told, which reports the whole vocabulary if asked.

    Args:
        at_once: every executable is built, as for a server, even if nobody calls it or another engine has it.
    """
    chosen = {"max_batch_size": 4, "max_batch_prefill_tokens": 64, "max_top_logprobs": VOCAB, **options}
    named = [NamedAdapter(name, str(path)) for name, path in (adapters or {}).items()]
    with nullcontext() if at_once else shared_executables():
        engine = load_engine(open_model(str(directory)), EngineOptions(**chosen), adapters=named)  # type: ignore[arg-type]
    if every_bucket:
        engine.finish_compiling()
    else:
        engine.runner.executables.close()
    return engine


def prompt(length: int, seed: int = 0) -> list[int]:
    """`<s>` and random ids without specials."""
    return [BOS, *np.random.default_rng(seed).integers(4, VOCAB, length - 1).tolist()]


def ask(
    number: int,
    ids: Sequence[int],
    *,
    salt: bytes = b"",
    timeout: float | None = None,
    queue_timeout: float | None = None,
    grammar: Grammar | None = None,
    reasoning: Reasoning | None = None,
    adapter: str = "",
    beams: BeamSearch | None = None,
    pooling: Pooling | None = None,
    logits: Logits | None = None,
    **params: object,
) -> Request:
    """Request `number`: greedy and deaf to EOS unless `params` say otherwise, or a grammar ends it."""
    chosen = {"temperature": 0, "seed": number, "ignore_eos": grammar is None, **params}
    wanted = SamplingParams(**chosen)  # type: ignore[arg-type]
    timeouts = {"timeout": timeout, "queue_timeout": queue_timeout}
    others = {"grammar": grammar, "reasoning": reasoning, "beam_search": beams}
    others |= {"pooling": pooling, "logits": logits}
    return Request(number, ids, wanted, salt=salt, adapter=adapter, **others, **timeouts)  # type: ignore[arg-type]


def serve(engine: Engine, requests: Iterable[Request], limit: int = 5000) -> Answers:
    """Submit all of `requests` and step until the engine is idle."""
    answers: Answers = {}
    for request in requests:
        engine.submit(request)
        answers[request.id] = Answer()
    return finish(engine, answers, limit)


def finish(engine: Engine, answers: Answers, limit: int = 5000) -> Answers:
    """Step until the engine is idle, adding to `answers`."""
    for _ in range(limit):
        while engine.idle and engine.preparing:  # a grammar or an adapter, on another thread
            time.sleep(0.001)
        if engine.idle:
            check_idle(engine)
            assert all(answer.finish for answer in answers.values())
            return answers
        step(engine, answers)
    raise AssertionError(f"not idle after {limit} steps: {engine.stats()}")


def step(engine: Engine, answers: Answers) -> None:
    result = engine.step()
    for event in result.events if result else ():
        _note(answers[event.request_id], event)


def alone(engine: Engine, request: Request) -> Answer:
    """What `request` is answered when nobody else is there and nothing is cached."""
    tables = engine.scheduler.tables
    cache, tables.prefix_cache = tables.prefix_cache, False
    try:
        return serve(engine, [request])[request.id]
    finally:
        tables.prefix_cache = cache


def check_idle(engine: Engine) -> None:
    """Nothing is left of requests that all have ended."""
    scheduler, pool = engine.scheduler, engine.scheduler.pool
    assert scheduler.idle and not engine.requests.live and engine.flight is None
    assert not any(pool.references)
    assert pool.available == pool.total - 1
    assert sorted(scheduler.batch.free_slots) == list(range(scheduler.slots))
    assert not any(scheduler.batch.adapters.held)


def _note(answer: Answer, event: Event) -> None:
    assert not answer.finish, f"request {event.request_id} was told something after its end"
    assert event.first == (bool(event.tokens or event.beams) and not answer.tokens)
    answer.tokens += event.tokens
    answer.beams += event.beams
    answer.embedding += event.embedding
    answer.logits += event.logits
    answer.surprises += [] if event.surprise is None else [event.surprise]
    answer.finish, answer.error = event.finish, event.error
    if event.first:
        answer.cached_tokens, answer.prompt = event.cached_tokens, event.prompt


def logprob_rows(tokens: Iterable[Token]) -> np.ndarray:
    """The log-probabilities of the whole vocabulary at each of `tokens`, f32 [tokens, V], in the order of ids."""
    rows = []
    for token in tokens:
        row = np.full(VOCAB, np.nan, np.float32)
        ids, values = zip(*token.top, strict=True)
        row[list(ids)] = values
        rows.append(row)
    return np.stack(rows)


def fail_once(engine: Engine, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Have the step that is read as number `at` fail."""
    fetch, calls = engine.runner.fetch, iter(range(1_000_000))

    def failing(flight: object) -> object:
        if next(calls) == at:
            raise RuntimeError("a device that fails")
        return fetch(flight)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.runner, "fetch", failing)
