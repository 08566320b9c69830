"""Whatever is drafted, a request is told what it is told without speculation.

The drafts are forced, right ones and wrong ones and all between, so no test depends on how long steps take.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.options.speculation import Speculation
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.plan import Plan
from jaxengine.request.samplers import Samplers
from jaxengine.speculation.speculator import Speculator
from jaxengine.speculation.step_times import StepTimes
from tests.jaxengine.drafting import ORACLE, assert_same, drafting, plain, plans_of
from tests.jaxengine.drafting import speculator as using
from tests.jaxengine.engine.test_recovery import FailingRunner, NanRunner
from tests.jaxengine.engines import Answer, Answers, ask, finish, load, prompt, serve, step
from tests.tiny import EOS

pytestmark = pytest.mark.slow

MOST = 7  # tokens of a draft
DRAFTS = {
    "oracle": ORACLE,
    "wrong": {"kinds": ("wrong",), "share": 1.0, "waiting": 1.0},
    "turning": {"kinds": ("turning",), "share": 1.0, "waiting": 1.0},
    "random": {"kinds": ("random",), "share": 0.6, "waiting": 0.5},
    "anything": {},
}
BAD_WORDS = ((200, 201), (201, 201), (202, 201, 203), (203, 202, 202))  # of the four ids that are likely there
WAYS: list[dict[str, object]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "processed_logprobs": True, "logprobs": 3},
    {"temperature": 1.1, "typical_p": 0.8, "min_p": 0.02},
    {"temperature": 0.9, "repetition_penalty": 1.3},
    {"frequency_penalty": 0.8, "presence_penalty": 0.5, "logprobs": 5, "processed_logprobs": True},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "frequency_over_length": True},
    {"temperature": 1.0, "logit_bias": {EOS: 6.0, 100: 3.0}, "min_tokens": 9, "ignore_eos": False},
    {"logprobs": 2, "prompt_logprobs": True},
    {"temperature": 0.8, "stop_token_ids": tuple(range(40, 60))},
    {"temperature": 1.0, "watermark_gamma": 0.5, "watermark_delta": 4.0},
    {"temperature": 1.0, "logit_bias": dict.fromkeys(range(200, 204), 40.0), "bad_words": BAD_WORDS},
    {"samplers": Samplers(dry_multiplier=1.0, dry_allowed_length=1, dry_breakers=(100,))},
    {"temperature": 1.1, "repetition_penalty": 1.4, "samplers": Samplers(repetition_range=9, xtc_probability=0.5)},
    {"temperature": 0.9, "samplers": Samplers(mirostat_tau=4.0, mirostat_eta=0.3)},
    {"temperature": 0.9, "samplers": Samplers(no_repeat_ngram_size=2, top_n_sigma=1.5)},
]
REQUESTS = [
    ask(number, prompt(3 + 4 * number, seed=number), **{"max_tokens": 18 + number % 7 * 4, **WAYS[number % len(WAYS)]})
    for number in range(20)
]


@pytest.fixture(scope="module")
def loaded(tiny: Callable[[str], Path], compile_cache: None) -> Engine:
    return load(tiny("llama2_gqa"), every_bucket=True, speculate=MOST)


@pytest.fixture
def engine(loaded: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """With an empty prefix cache. It compiles nothing, whatever a test asks of it."""
    runner = loaded.runner
    loaded.scheduler.reset()
    monkeypatch.setattr(loaded, "compiles_at_start", COMPILES.unexpected)
    yield loaded
    assert loaded.stats().compiles_after_warmup == 0
    loaded.runner = runner


@pytest.fixture(scope="module")
def expected(loaded: Engine) -> Answers:
    return plain(loaded, REQUESTS)


def assert_all_same(answers: Answers, expected: Answers) -> None:
    for request in REQUESTS:
        assert_same(answers[request.id], expected[request.id], request)


@pytest.mark.parametrize("kind", DRAFTS)
def test_requests_are_told_what_they_are_told_without_drafts(engine: Engine, expected: Answers, kind: str) -> None:
    """More of them than rows, so that prompts come in chunks beside rows that have drafts at other times."""
    with drafting(engine, expected, **DRAFTS[kind]) as drafts:  # type: ignore[arg-type]
        assert_all_same(serve(engine, REQUESTS), expected)
    assert drafts.draft_tokens > 100
    assert (sum(drafts.accepted) > 50) == (kind not in ("wrong", "random"))


@pytest.mark.parametrize("kind", ["turning", "anything"])
@pytest.mark.parametrize("seed", range(3))
def test_each_request_alone_is_told_what_it_is_told_without_drafts(
    engine: Engine, expected: Answers, kind: str, seed: int
) -> None:
    for request in REQUESTS:
        with drafting(engine, expected, seed, **DRAFTS[kind]):  # type: ignore[arg-type]
            assert_same(serve(engine, [request])[request.id], expected[request.id], request)


def test_an_engine_that_cannot_speculate_answers_the_same(
    engine: Engine, expected: Answers, tiny: Callable[[str], Path]
) -> None:
    assert_all_same(serve(load(tiny("llama2_gqa")), REQUESTS), expected)


@pytest.mark.parametrize("tokens", [*range(1, 13), 17, 18, 19])
def test_right_drafts_of_w_tokens_take_one_step_for_w_tokens_and_the_next(engine: Engine, tokens: int) -> None:
    """But the step behind the prompt's is planned before that one's token is known, so it has no draft."""
    request = ask(0, prompt(20), max_tokens=tokens)
    expected = plain(engine, [request])
    before = engine.stats().steps
    with drafting(engine, expected, **ORACLE):
        assert_same(serve(engine, [request])[0], expected[0], request)
    assert engine.stats().steps - before == min(tokens, 2) + -(-max(0, tokens - 2) // (MOST + 1))


def test_drafts_from_the_text_itself_change_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the policy that serves, as if every step took as long: then drafts pay wherever they may be right."""
    note = StepTimes.note
    monkeypatch.setattr(StepTimes, "note", lambda times, size, seconds: note(times, size, 1.0))
    repeating = {"max_tokens": 40, "frequency_penalty": -1.0}  # a random model repeats nothing by itself
    requests = [ask(n, prompt(4 + n, seed=n), temperature=n % 3 / 2, **repeating) for n in range(20)]
    expected = plain(engine, requests)
    before = engine.stats().accepted_draft_tokens
    answers = serve(engine, requests)
    for request in requests:
        assert_same(answers[request.id], expected[request.id], request)
    assert engine.speculator is not None and sum(engine.stats().accepted_draft_tokens) > sum(before) + 50


def test_the_last_event_of_a_request_tells_how_many_steps_and_guesses_it_took(
    engine: Engine, expected: Answers
) -> None:
    last: dict[int, Event] = {}
    with drafting(engine, expected) as drafts:
        for request in REQUESTS:
            engine.submit(request)
        while not engine.idle:
            result = engine.step()
            last |= {event.request_id: event for event in result.events} if result else {}
    for request in REQUESTS:
        event = last[request.id]
        assert event.sampling_steps + event.accepted_draft_tokens == len(expected[request.id].ids)
        assert event.accepted_draft_tokens <= event.draft_tokens
    assert sum(event.draft_tokens for event in last.values()) == drafts.draft_tokens
    assert sum(event.accepted_draft_tokens for event in last.values()) == sum(drafts.accepted)


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_step_that_was_held_up_by_a_first_run_is_no_measure(engine: Engine, disturbed: bool) -> None:
    speculator = Speculator(Speculation(MOST), [8], lambda size: False, engine.runner.buckets.plain_size)
    buckets = engine.runner.buckets
    before = buckets.last_first_run
    buckets.last_first_run = math.inf if disturbed else before
    with using(engine, speculator):
        serve(engine, [ask(0, prompt(9), max_tokens=8)])
    buckets.last_first_run = before
    assert bool(speculator.times.seconds) != disturbed


# --- ends inside a draft ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["oracle", "turning"])
@pytest.mark.parametrize("end", ["stop", "eos"])
def test_an_answer_ends_at_any_token_of_a_right_draft(
    engine: Engine, end: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(0, prompt(9, seed=4), max_tokens=2 * MOST + 4, temperature=1.0)
    ids = plain(engine, [request])[0].ids
    offsets = [offset for offset in range(len(ids)) if ids[offset] not in ids[:offset]]
    assert len(offsets) > MOST + 2
    for offset in offsets:
        ways = {"stop_token_ids": (ids[offset],)} if end == "stop" else {"ignore_eos": False}
        ended = ask(0, request.prompt, **{"max_tokens": 2 * MOST + 4, "temperature": 1.0, **ways})
        if end == "eos":
            monkeypatch.setattr(engine.answers, "eos_token_ids", frozenset({ids[offset]}))
        expected = plain(engine, [ended])
        assert expected[0].ids == ids[: offset + 1]
        with drafting(engine, {0: Answer(tokens=[*plain(engine, [request])[0].tokens])}, offset, **DRAFTS[kind]):
            assert_same(serve(engine, [ended])[0], expected[0], ended)


def test_a_draft_ends_where_the_context_does(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = engine.description.max_total_tokens
    plans = plans_of(engine, monkeypatch)
    for tokens in range(1, 12):
        request = ask(0, prompt(longest - tokens), max_tokens=tokens)
        expected = plain(engine, [request])
        with drafting(engine, expected, **ORACLE):
            assert_same(serve(engine, [request])[0], expected[0], request)
    ends = {row.start + row.count for plan in plans for row in plan.rows if row.draft}
    assert max(ends) == longest - 1  # the last token is never fed


# --- traces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["oracle", "wrong", "turning", "anything"])
def test_the_device_remembers_the_last_token_that_counts(
    engine: Engine, expected: Answers, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, checked = engine.scheduler.complete, 0

    def checking(plan: Plan) -> None:
        nonlocal checked
        complete(plan)
        last = np.asarray(engine.runner.state.slot_state.latest.id)
        for row in plan.rows if plan.verifies else ():
            if row.sequence.slot is not None:
                checked += 1
                assert last[row.sequence.slot] == row.sequence.tokens[-1]

    monkeypatch.setattr(engine.scheduler, "complete", checking)
    with drafting(engine, expected, **DRAFTS[kind]):  # type: ignore[arg-type]
        assert_all_same(serve(engine, REQUESTS), expected)
    assert checked > 30


def test_keys_and_values_of_wrong_guesses_are_never_read(
    engine: Engine, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made NaN as soon as they are known to be wrong. Then others hit the pages where they lay."""
    complete, size = engine.scheduler.complete, engine.runner.shapes.page_size

    def poisoning(plan: Plan) -> None:
        complete(plan)
        wrong = [
            (table.pages[position // size], position % size)
            for row in plan.rows
            if row.draft and row.sequence.slot is not None
            for table in row.sequence.tables
            for position in range(row.sequence.computed, row.start + row.count)
        ]
        if wrong:
            page, offset = jnp.array(wrong).T
            caches = engine.runner.state.layers
            engine.runner.state.layers = tuple(cache.at[:, page, offset].set(jnp.nan) for cache in caches)

    few = [request for request in REQUESTS if request.id < 6]
    longer = [ask(each.id, [*each.prompt, *expected[each.id].ids], max_tokens=5) for each in few]
    theirs = plain(engine, longer)
    monkeypatch.setattr(engine.scheduler, "complete", poisoning)
    with drafting(engine, expected | theirs, **DRAFTS["turning"]), COMPILES.expected():  # type: ignore[arg-type]
        first, again = serve(engine, few), serve(engine, longer)
    assert sum(answer.cached_tokens > len(each.prompt) for each, answer in zip(few, again.values(), strict=True)) > 2
    for early, late in zip(few, longer, strict=True):
        assert_same(first[early.id], expected[early.id], early)
        assert_same(again[late.id], theirs[late.id], late)


# --- trouble ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("kind", ["oracle", "anything"])
def test_requests_that_must_make_way_are_told_the_same(
    engine: Engine, expected: Answers, kind: str, prefix_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.scheduler.tables, "pool", PagePool(11, 16))
    monkeypatch.setattr(engine.scheduler.tables, "prefix_cache", prefix_cache)
    before = engine.stats().preemptions
    with drafting(engine, expected, **DRAFTS[kind]) as drafts:  # type: ignore[arg-type]
        assert_all_same(serve(engine, REQUESTS), expected)
    assert engine.stats().preemptions > before and drafts.draft_tokens > 50


@pytest.mark.parametrize("when", [3, 8, 13, 21])
def test_a_request_cancelled_at_any_step_changes_no_other(engine: Engine, expected: Answers, when: int) -> None:
    with drafting(engine, expected, when, kinds=("turning", "right"), share=1.0, waiting=0.8):
        answers = {request.id: Answer() for request in REQUESTS}
        for request in REQUESTS:
            engine.submit(request)
        for _ in range(when):
            step(engine, answers)
        running = engine.scheduler.batch.running[0].request.id
        engine.cancel(running)
        finish(engine, answers)
    assert answers[running].finish is FinishReason.CANCELLED
    assert answers[running].ids == expected[running].ids[: len(answers[running].ids)]
    for request in REQUESTS:
        if request.id != running:
            assert_same(answers[request.id], expected[request.id], request)


@pytest.mark.parametrize("at", ["backbone", "sample", "fetch"])
def test_a_step_that_verifies_and_fails_costs_nobody_a_token(engine: Engine, expected: Answers, at: str) -> None:
    times = iter([False, True, False, True])
    runner = FailingRunner(engine.runner, lambda plan: plan.verifies and next(times, False), at)
    with drafting(engine, expected, kinds=("turning", "right"), share=1.0, waiting=1.0):
        engine.runner = runner  # type: ignore[assignment]
        assert_all_same(serve(engine, REQUESTS), expected)
    assert runner.failures == 2


@pytest.mark.parametrize("after", range(0, 12, 3))
def test_logits_that_are_not_finite_end_their_request_where_they_would_without_drafts(
    engine: Engine, expected: Answers, after: int
) -> None:
    culprit = 5
    with drafting(engine, expected, kinds=("turning", "right"), share=1.0, waiting=1.0):
        engine.runner = NanRunner(engine.runner, culprit, after=after)  # type: ignore[assignment]
        answers = serve(engine, REQUESTS)
    assert answers[culprit].finish is FinishReason.ERROR and "not finite" in answers[culprit].error
    assert answers[culprit].ids == expected[culprit].ids[:after]
    for request in REQUESTS:
        if request.id != culprit:
            assert_same(answers[request.id], expected[request.id], request)
