"""Answers are drafted from what others were answered, change nothing, and stay within a scope.

By the policy that serves, as if every step took as long: then drafts pay wherever they may be right.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.request.event import FinishReason
from jaxengine.request.sequence import Request
from jaxengine.speculation.speculator import Speculator
from jaxengine.speculation.step_times import StepTimes
from tests.jaxengine.drafting import assert_same, plain
from tests.jaxengine.engine.test_recovery import NanRunner
from tests.jaxengine.engine.test_speculation import REQUESTS
from tests.jaxengine.engines import Answer, ask, finish, load, prompt, serve, step

pytestmark = pytest.mark.slow

CONFIG = '{"method": "suffix", "num_speculative_tokens": 7}'
LONG = {"max_tokens": 40, "temperature": 1.0, "seed": 5}  # a text that does not repeat itself


@pytest.fixture(scope="module")
def loaded(tiny: Callable[[str], Path], compile_cache: None) -> Engine:
    return load(tiny("llama2_gqa"), every_bucket=True, speculative_config=CONFIG)


@pytest.fixture
def engine(loaded: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """That has answered nothing yet."""
    note, own, runner = StepTimes.note, loaded.scheduler.speculator, loaded.runner
    monkeypatch.setattr(StepTimes, "note", lambda times, size, seconds: note(times, size, 1.0))
    assert own is not None
    fresh = Speculator(own.options, own.sizes, own.ready, own.plain_size)
    loaded.scheduler.reset()
    loaded.scheduler.speculator = fresh
    serve(loaded, [ask(900 + n, prompt(5, seed=90 + n), max_tokens=9, salt=b"?") for n in range(2)])  # times a step
    yield loaded
    loaded.scheduler.speculator, loaded.runner = own, runner


def accepted(engine: Engine, request: Request) -> int:
    """Guesses that were right while `request` alone was answered, as it is without drafts."""
    expected = plain(engine, [request])[request.id]
    before = sum(engine.stats().accepted_draft_tokens)
    assert_same(serve(engine, [request])[request.id], expected, request)
    return sum(engine.stats().accepted_draft_tokens) - before


def test_requests_are_told_what_they_are_told_without_drafts(engine: Engine) -> None:
    """Three times over, in whatever order they end: from the second time on most drafts are right."""
    expected = plain(engine, REQUESTS)
    before = sum(engine.stats().accepted_draft_tokens)
    for _ in range(3):
        answers = serve(engine, REQUESTS)
        for request in REQUESTS:
            assert_same(answers[request.id], expected[request.id], request)
    assert sum(engine.stats().accepted_draft_tokens) - before > 200


def test_a_request_is_drafted_what_another_was_answered(engine: Engine) -> None:
    assert accepted(engine, ask(0, prompt(9), **LONG)) < 5
    assert accepted(engine, ask(1, prompt(9), **LONG)) > 25


@pytest.mark.parametrize("salt", [b"another", b""])
def test_not_across_salts(engine: Engine, salt: bytes) -> None:
    serve(engine, [ask(0, prompt(9), **LONG, salt=b"one")])
    assert accepted(engine, ask(1, prompt(9), **LONG, salt=salt)) < 5
    assert accepted(engine, ask(2, prompt(9), **LONG, salt=b"one")) > 25


def test_not_once_so_many_others_were_answered(engine: Engine) -> None:
    assert engine.speculator is not None and engine.speculator.answers is not None
    engine.speculator.answers.most = 3
    serve(engine, [ask(0, prompt(9), **LONG)])
    serve(engine, [ask(n, prompt(7, seed=n), **LONG) for n in range(1, 4)])
    assert accepted(engine, ask(9, prompt(9), **LONG)) < 5


def test_what_was_told_before_a_request_was_cancelled_is_drafted(engine: Engine) -> None:
    """So it ends where a stop string does that the gateway sees."""
    answers = {0: Answer()}
    engine.submit(ask(0, prompt(9), **{**LONG, "max_tokens": 60}))
    while len(answers[0].ids) < 40:
        step(engine, answers)
    engine.cancel(0)
    finish(engine, answers)
    assert answers[0].finish is FinishReason.CANCELLED
    assert accepted(engine, ask(1, prompt(9), **LONG)) > 25


def test_logits_that_are_not_finite_leave_nothing_to_draft(engine: Engine) -> None:
    whole = engine.runner
    engine.runner = NanRunner(whole, 0, after=35)  # type: ignore[assignment]
    assert serve(engine, [ask(0, prompt(9), **LONG)])[0].finish is FinishReason.ERROR
    engine.runner = whole
    assert accepted(engine, ask(1, prompt(9), **LONG)) < 5
