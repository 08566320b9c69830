"""A request's tokens are its own: neighbours, preemption, chunking and the prefix cache change none of them.

Every request is first served alone, then among 32 others: with room for most of them at once, and with so little that
some must make way.
"""

import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine.engine import Engine
from jaxengine.request.samplers import Samplers
from jaxengine.request.sequence import Request
from tests.jaxengine.engines import Answers, alone, ask, prompt, serve
from tests.tiny import EOS

pytestmark = pytest.mark.slow

WAYS: list[dict[str, object]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "processed_logprobs": True, "logprobs": 3},
    {"temperature": 0.9, "repetition_penalty": 1.3},
    {"temperature": 1.0, "frequency_penalty": 0.8, "presence_penalty": 0.5},
    {"frequency_penalty": 0.5, "frequency_over_length": True},
    {"temperature": 1.1, "typical_p": 0.8, "min_p": 0.02},
    {"temperature": 1.0, "logit_bias": {EOS: 6.0}, "min_tokens": 9, "ignore_eos": False},
    {"logprobs": 2, "prompt_logprobs": True},
    {"temperature": 0.8, "stop_token_ids": tuple(range(40, 60))},
    {"temperature": 0, "typical_p": 0.1, "top_k": 1, "processed_logprobs": True},  # greedy knows no filter
    {"temperature": 1.0, "samplers": Samplers(mirostat_tau=4.0, mirostat_eta=0.3)},
    {"samplers": Samplers(dry_multiplier=1.0, dry_allowed_length=1, no_repeat_ngram_size=3)},
    {
        "temperature": 1.2,
        "min_p": 0.01,
        "samplers": Samplers(xtc_probability=0.5, order=("min_p", "xtc", "temperature")),
    },
]
SHARED = prompt(40, seed=99)  # half of the prompts begin alike, so that the cache is hit

REQUESTS = [
    ask(
        number,
        [*SHARED[: 20 + number // 2], *prompt(10, seed=number)[1:]] if number % 2 else prompt(3 + number, seed=number),
        **{"max_tokens": 36 + number % 7 * 6, **WAYS[number % len(WAYS)]},
    )
    for number in range(33)
]


@pytest.fixture(scope="module", params=["narrow", "wide"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expected(engine: Engine) -> Answers:
    return {request.id: alone(engine, request) for request in REQUESTS}


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("pages", [64, 24], ids=["roomy", "tight"])
def test_tokens_are_the_same_alone_and_among_32_neighbours(
    engine: Engine, expected: Answers, pages: int, prefix_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.scheduler.tables, "prefix_cache", prefix_cache)
    monkeypatch.setattr(engine.scheduler.tables, "pool", PagePool(pages + 1, 16))
    before = engine.stats()
    answers = serve(engine, REQUESTS)
    after = engine.stats()
    assert after.preemptions > before.preemptions or pages == 64
    assert (after.cached_prompt_tokens > before.cached_prompt_tokens) == prefix_cache
    for request in REQUESTS:
        assert_same(answers, expected, request)


def assert_same(answers: Answers, expected: Answers, request: Request) -> None:
    ours, theirs = answers[request.id], expected[request.id]
    assert (ours.ids, ours.finish) == (theirs.ids, theirs.finish), request.params
    for mine, other in zip([*ours.tokens, *ours.prompt[1:]], [*theirs.tokens, *theirs.prompt[1:]], strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [token for token, _ in mine.top] == [token for token, _ in other.top]


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.2, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {
            "repetition_penalty": 1.5,
            "samplers": Samplers(dry_multiplier=1.0, repetition_range=20, repetition_slope=0.5),
        },
        {"temperature": 1.0, "samplers": Samplers(mirostat_tau=4.0, mirostat_eta=0.3)},
    ],
)
def test_samplers_remember_what_was_generated_before_a_preemption(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, penalties: dict[str, object]
) -> None:
    requests = [ask(number, prompt(30, seed=number), max_tokens=40, **penalties) for number in range(3)]
    theirs = {request.id: alone(engine, request) for request in requests}
    monkeypatch.setattr(engine.scheduler.tables, "pool", PagePool(9, 16))
    before = engine.stats().preemptions
    answers = serve(engine, requests)
    assert engine.stats().preemptions > before
    for request in requests:
        assert_same(answers, theirs, request)


def test_a_requests_events_tell_how_often_it_was_preempted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.scheduler.tables, "pool", PagePool(9, 16))
    before = engine.stats().preemptions
    for number in range(3):
        engine.submit(ask(number, prompt(30, seed=number), max_tokens=40))
    last: dict[int, int] = {}
    while not engine.idle:
        result = engine.step()
        last |= {event.request_id: event.preemptions for event in result.events} if result else {}
    assert sum(last.values()) == engine.stats().preemptions - before > 0


def test_the_workload_is_not_degenerate(expected: Answers) -> None:
    """Random weights could have everyone repeat one id, and equality would say little."""
    assert len({tuple(answer.ids) for answer in expected.values()}) == len(REQUESTS)
    assert len({token for answer in expected.values() for token in answer.ids}) > 100


def test_another_seed_draws_other_tokens(engine: Engine) -> None:
    ids = prompt(12)
    answers = serve(engine, [ask(seed, ids, temperature=1.0, max_tokens=16) for seed in range(8)])
    assert len({tuple(answer.ids) for answer in answers.values()}) == 8


def test_a_request_made_again_gets_the_same_tokens(engine: Engine) -> None:
    request = ask(5, prompt(50), temperature=1.0, max_tokens=16)
    first, again = serve(engine, [request])[5], serve(engine, [request])[5]
    assert again.cached_tokens == 48 and first.ids == again.ids


def test_prompts_that_differ_in_salt_share_nothing(engine: Engine) -> None:
    ids = prompt(50, seed=123)
    serve(engine, [ask(1, ids, salt=b"alice")])
    assert serve(engine, [ask(2, ids, salt=b"bob")])[2].cached_tokens == 0
    assert serve(engine, [ask(3, ids, salt=b"alice")])[3].cached_tokens == 48
