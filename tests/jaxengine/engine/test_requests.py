"""What the engine refuses, how a request ends, and that nothing of it stays behind."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.options.table import EngineOptions
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.sampling_params import MAX_EOS_TOKEN_IDS, SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.rpc.limits import MAX_BAD_WORD_IDS, MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from jaxengine.startup.build import load_engine
from tests.jaxengine.engines import Answer, alone, ask, check_idle, finish, prompt, serve, step
from tests.tiny import EOS, VOCAB


@pytest.fixture
def engine(narrow: Engine) -> Engine:
    return narrow


# --- refusals -----------------------------------------------------------------------------------------------------

REFUSED = [
    (ask(1, []), "prompt has no tokens"),
    (ask(1, [1, VOCAB]), rf"prompt has the id {VOCAB}, outside \[0, {VOCAB}\)"),
    (ask(1, [1, -1]), r"prompt has the id -1, outside \[0, 320\)"),
    (
        ask(1, prompt(120), max_tokens=9),
        "prompt of 120 tokens and max_tokens 9 make 129, more than max_total_tokens 128",
    ),
    (ask(1, [1], stop_token_ids=(5, 999)), "stop_token_ids has the id 999"),
    (ask(1, [1], logit_bias={320: 1.0}), "logit_bias has the id 320"),
    (ask(1, [1], bad_words=((5, 320),)), "bad_words has the id 320"),
    (ask(1, [1], logprobs=321), "logprobs 321 is more than 320"),
    (
        ask(
            1, [1], logit_bias={EOS: 1.0, 9: 0.0}, only_biased=True, min_tokens=1, stop_token_ids=(9,), ignore_eos=False
        ),
        "only_biased leaves no id",
    ),
]


@pytest.mark.parametrize("request_, message", REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_a_request_that_can_never_be_served_is_refused_at_once(engine: Engine, request_: Request, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine.submit(request_)
    assert engine.idle


def test_a_model_with_more_ends_than_the_sampler_can_ban_is_refused_before_it_is_loaded(
    tiny: Callable[[str], Path],
) -> None:
    opened = open_model(str(tiny("llama2_gqa")))
    many = dataclasses.replace(opened, eos_token_ids=tuple(range(MAX_EOS_TOKEN_IDS + 1)))
    with pytest.raises(ValueError, match="the model has 33 eos_token_ids, at most 32"):
        load_engine(many, EngineOptions())


def test_as_many_ends_as_there_may_be_are_banned_together(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, stops = tuple(range(MAX_EOS_TOKEN_IDS)), tuple(range(100, 100 + MAX_STOP_TOKEN_IDS))
    monkeypatch.setattr(engine.runner, "eos_token_ids", ends)
    monkeypatch.setattr(engine.answers, "eos_token_ids", frozenset(ends))
    params = {"temperature": 5.0, "min_tokens": 8, "max_tokens": 8, "stop_token_ids": stops, "ignore_eos": False}
    answer = alone(engine, ask(1, prompt(5), **params))
    assert len(answer.ids) == 8 and not {*ends, *stops} & {*answer.ids}


def test_a_request_of_exactly_the_longest_length_is_served(engine: Engine) -> None:
    answer = alone(engine, ask(1, prompt(120), max_tokens=8))
    assert len(answer.ids) == 8 and answer.finish is FinishReason.LENGTH


WRONG = [
    *((name, value) for name in ("temperature", "top_p", "typical_p", "min_p") for value in (math.nan, -0.1, math.inf)),
    *((name, math.nan) for name in ("repetition_penalty", "frequency_penalty", "presence_penalty")),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("typical_p", 0.0),
    ("min_p", 1.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 1e-40),
    ("frequency_penalty", 101),
    ("top_k", -1),
    ("max_tokens", 0),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("seed", -1),
    ("seed", 2**64),
    ("logprobs", -1),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: math.inf}),
    ("logit_bias", {1: 1e39}),
    ("bad_words", ((),)),
    ("bad_words", ((1,) * (MAX_BAD_WORD_IDS + 1),)),
    ("bad_words", ((1,),) * (MAX_BAD_WORDS + 1)),
    ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0)),
    ("stop_token_ids", (1,) * (MAX_STOP_TOKEN_IDS + 1)),
    ("only_biased", True),
    ("temperature", "0.5"),
    ("logit_bias", {"5": 1.0}),
    ("bad_words", (("a",),)),
    ("stop_token_ids", ("a",)),
]


@pytest.mark.parametrize("name, value", WRONG, ids=[f"{name}={value}"[:40] for name, value in WRONG])
def test_a_parameter_out_of_range_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


# --- how a request ends -------------------------------------------------------------------------------------------


def test_the_last_permitted_token_reports_length_even_if_it_is_eos(engine: Engine) -> None:
    answer = alone(engine, ask(1, prompt(5), max_tokens=1, logit_bias={EOS: 1000.0}, ignore_eos=False))
    assert (answer.ids, answer.finish) == ([EOS], FinishReason.LENGTH)


def test_eos_ends_a_request(engine: Engine) -> None:
    answer = alone(engine, ask(1, prompt(5), max_tokens=9, logit_bias={EOS: 1000.0}, ignore_eos=False))
    assert (answer.ids, answer.finish) == ([EOS], FinishReason.EOS)


def test_a_request_that_ignores_eos_goes_on_after_it(engine: Engine) -> None:
    answer = alone(engine, ask(1, prompt(5), max_tokens=4, logit_bias={EOS: 1000.0}))
    assert (answer.ids, answer.finish) == ([EOS] * 4, FinishReason.LENGTH)


def test_a_stop_id_ends_a_request(engine: Engine) -> None:
    free = alone(engine, ask(1, prompt(5), max_tokens=6)).ids
    answer = alone(engine, ask(1, prompt(5), max_tokens=6, stop_token_ids=(free[3],)))
    assert (answer.ids, answer.finish) == (free[: free.index(free[3]) + 1], FinishReason.STOP_TOKEN)


@pytest.mark.parametrize(
    "ends, reason",
    [
        ({"ignore_eos": False, "logit_bias": {EOS: 1000.0}}, FinishReason.EOS),
        ({"stop_token_ids": (77,), "logit_bias": {77: 1000.0}}, FinishReason.STOP_TOKEN),
    ],
    ids=["eos", "stop"],
)
def test_nothing_ends_a_request_before_min_tokens(
    engine: Engine, ends: dict[str, object], reason: FinishReason
) -> None:
    answer = alone(engine, ask(1, prompt(5), max_tokens=9, min_tokens=4, **ends))
    assert len(answer.ids) == 5 and answer.finish is reason


def test_prompt_logprobs_start_with_one_that_nothing_predicts(engine: Engine) -> None:
    answer = alone(engine, ask(1, [1], max_tokens=1, prompt_logprobs=True))
    assert [token.id for token in answer.prompt] == [1]
    assert math.isnan(answer.prompt[0].logprob)
    assert alone(engine, ask(1, prompt(5), max_tokens=1)).prompt == []


def test_as_many_alternatives_as_asked_for_come_with_each_token(engine: Engine) -> None:
    requests = [ask(number, prompt(9), max_tokens=3, logprobs=number) for number in range(4)]
    for number, answer in serve(engine, requests).items():
        assert [len(token.top) for token in answer.tokens] == [number] * 3
        assert all(token.top[0] == (token.id, token.logprob) for token in answer.tokens if number)


def test_what_was_computed_behind_the_end_of_a_request_is_not_the_answer_of_the_next_with_its_id(
    engine: Engine,
) -> None:
    """Steps are launched one ahead, so there is one behind each end that nobody foresaw."""
    ends = ask(1, prompt(5), max_tokens=9, stop_token_ids=(77,), logit_bias={77: 1000.0})
    follows = ask(1, prompt(7, seed=1), max_tokens=4)
    expected, answers = alone(engine, follows), {1: Answer()}
    engine.submit(ends)
    while not answers[1].tokens:
        step(engine, answers)
    assert (answers[1].ids, engine.requests.live) == ([77], {}) and engine.flight is not None
    assert serve(engine, [follows])[1].ids == expected.ids


# --- leaving early ------------------------------------------------------------------------------------------------


def test_a_request_cancelled_in_any_state_leaves_nothing(engine: Engine) -> None:
    """After k steps a request may be waiting, in the middle of its prompt, decoding, on its last token, or over."""
    for steps in range(12):
        answers = {number: Answer() for number in range(12)}
        for number in answers:
            engine.submit(ask(number, prompt(50, seed=number), max_tokens=5))
        for _ in range(steps):
            step(engine, answers)
        for number in range(0, 12, 2):
            engine.cancel(number)
            engine.cancel(number)
        finish(engine, answers)
        assert all(answers[number].finish is FinishReason.LENGTH for number in range(1, 12, 2))
        assert {answers[number].finish for number in range(0, 12, 2)} <= {FinishReason.CANCELLED, FinishReason.LENGTH}


def test_cancelling_what_does_not_exist_does_nothing(engine: Engine) -> None:
    engine.cancel(404)
    finish(engine, {})


def test_neighbours_of_a_cancelled_request_get_the_tokens_they_would_have_had(engine: Engine) -> None:
    requests = [ask(number, prompt(20, seed=number), max_tokens=20, temperature=1.0) for number in range(8)]
    expected = {request.id: alone(engine, request).ids for request in requests}
    answers = {request.id: Answer() for request in requests}
    for request in requests:
        engine.submit(request)
    for _ in range(8):
        step(engine, answers)
    engine.cancel(0)
    finish(engine, answers)
    assert answers[0].finish is FinishReason.CANCELLED
    assert {number: answers[number].ids for number in range(1, 8)} == {n: expected[n] for n in range(1, 8)}


def age(engine: Engine, requests: Iterable[Request], seconds: float) -> None:
    """Let `requests` have arrived earlier: time passes for them alone, however slow the machine is."""
    for request in requests:
        object.__setattr__(request, "arrived", request.arrived - seconds)
        engine.requests.live[request.id].earliest_deadline -= seconds


def test_a_deadline_ends_a_request_wherever_it_is(engine: Engine) -> None:
    late = [ask(number, prompt(30, seed=number), max_tokens=90, timeout=1000) for number in range(40)]
    in_time = ask(41, prompt(5), max_tokens=3, timeout=3000)
    answers = {request.id: Answer() for request in (*late, in_time)}
    for request in (*late, in_time):
        engine.submit(request)
    for _ in range(20):
        step(engine, answers)
    assert engine.scheduler.batch.running and engine.scheduler.queue.waiting
    age(engine, [*late, in_time], 2000)
    finish(engine, answers)
    assert {answers[request.id].finish for request in late} == {FinishReason.DEADLINE}
    assert answers[41].finish is FinishReason.LENGTH


def test_a_deadline_for_the_queue_spares_those_that_left_it(engine: Engine) -> None:
    requests = [ask(number, prompt(30, seed=number), max_tokens=40, queue_timeout=1000) for number in range(40)]
    answers = {request.id: Answer() for request in requests}
    for request in requests:
        engine.submit(request)
    for _ in range(4):
        step(engine, answers)
    started = {sequence.request.id for sequence in engine.scheduler.batch.running}
    assert {number for number in answers if not engine.is_queued(number)} == started
    age(engine, requests, 2000)
    finish(engine, answers)
    assert started and not engine.requests.never_scheduled
    for number, answer in answers.items():
        assert answer.finish is (FinishReason.LENGTH if number in started else FinishReason.QUEUE_TIMEOUT)


def test_a_deadline_for_the_queue_spares_those_whose_prompt_another_reads(engine: Engine) -> None:
    requests = [ask(number, prompt(120), max_tokens=2, salt=b"new", queue_timeout=1000) for number in range(3)]
    answers = {request.id: Answer() for request in requests}
    for request in requests:
        engine.submit(request)
    step(engine, answers)
    assert [len(engine.scheduler.batch.running), len(engine.scheduler.queue.waiting)] == [1, 2]
    assert not any(map(engine.is_queued, answers))
    age(engine, requests, 2000)
    finish(engine, answers)
    assert [(answer.finish, answer.cached_tokens) for answer in answers.values()] == [
        (FinishReason.LENGTH, cached) for cached in (0, 112, 112)
    ]


def test_a_running_request_keeps_the_tokens_it_got_before_its_deadline(engine: Engine) -> None:
    request = ask(1, prompt(5), max_tokens=120, timeout=1000)
    expected = alone(engine, ask(1, prompt(5), max_tokens=120)).ids
    answers = {1: Answer()}
    engine.submit(request)
    while not answers[1].tokens:
        step(engine, answers)
    age(engine, [request], 2000)
    finish(engine, answers)
    assert answers[1].finish is FinishReason.DEADLINE
    assert answers[1].ids == expected[: len(answers[1].ids)]


def test_requests_may_arrive_and_leave_from_many_threads(engine: Engine) -> None:
    answers = {number: Answer() for number in range(60)}

    def client(first: int) -> None:
        for number in range(first, 60, 4):
            engine.submit(ask(number, prompt(4 + number % 30, seed=number), max_tokens=6))
            if number % 3 == 0:
                engine.cancel(number)

    threads = [threading.Thread(target=client, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        step(engine, answers)
    finish(engine, answers)
    assert all(answers[number].finish is FinishReason.LENGTH for number in answers if number % 3)


# --- what it says of itself ---------------------------------------------------------------------------------------


def test_counters_equal_what_was_delivered(engine: Engine) -> None:
    before = engine.stats()
    answers = serve(engine, [ask(n, prompt(10 + n, seed=n), max_tokens=4, salt=b"fresh") for n in range(6)])
    after = engine.stats()
    assert after.generated_tokens - before.generated_tokens == sum(len(answer.ids) for answer in answers.values()) == 24
    assert after.prompt_tokens - before.prompt_tokens == sum(10 + n for n in range(6))
    assert (after.waiting, after.running, after.pages_used) == (0, 0, 0)


def answered(engine: Engine, request: Request) -> list[int]:
    """What each step counts as answered while `request` is served alone."""
    engine.submit(request)
    counts = []
    while not engine.idle:
        result = engine.step()
        counts += [result.answered_tokens] if result and result.seconds else []
    return counts


def test_a_prompt_is_answered_in_the_step_of_its_first_token_but_for_what_the_cache_had(engine: Engine) -> None:
    """As vLLM counts a step; chunks before it answer nothing."""
    request = ask(1, prompt(110), max_tokens=3, salt=b"answered")
    *chunks, first, second, third = answered(engine, request)
    assert chunks and not any(chunks)
    assert (first, second, third) == (110 + 1, 1, 1)
    assert [count for count in answered(engine, request) if count] == [110 - 96 + 1, 1, 1]


def test_the_time_in_the_queue_ends_when_a_request_is_admitted(engine: Engine) -> None:
    """Its own prefill, here of four chunks, does not count."""
    request = ask(1, prompt(110), max_tokens=1, salt=b"queue")
    engine.submit(request)
    engine.step()
    admitted = time.monotonic()
    events: list[Event] = []
    while not engine.idle:
        result = engine.step()
        events += result.events if result else []
    assert 0 <= events[0].queue_seconds <= admitted - request.arrived


def test_an_idle_engine_has_nothing_to_say(engine: Engine) -> None:
    check_idle(engine)
    assert engine.step() is None
