"""What a request asks of the next engine, and when it is given up."""

import pytest

from gateway.engine.journey import Journey
from jaxengine.rpc import engine_pb2 as pb
from tests.processes import ask


def told(*ids: int, **fields: object) -> pb.RequestEvent:
    return pb.RequestEvent(tokens=[pb.Token(id=number) for number in ids], **fields)  # type: ignore[arg-type]


def test_the_first_engine_gets_the_request_as_it_is() -> None:
    request = ask([1, 2], 9, timeout_seconds=5, queue_timeout_seconds=3)
    assert Journey(request).request() is request


def test_the_next_one_is_told_what_has_been_answered_and_how_much_time_is_left() -> None:
    journey = Journey(ask([1, 2], 9, timeout_seconds=5, queue_timeout_seconds=3))
    journey.note(told(7, 8, prompt=pb.Prompt(cached_tokens=1), surprise=1.5))
    journey.note(told(9, surprise=2.5))
    journey.lost(0, died=True)
    request = journey.request()
    assert list(request.prompt) == [1, 2] and request.max_new_tokens == 9
    assert list(request.resume.generated) == [7, 8, 9] and request.resume.surprise == 2.5
    assert 4 < request.timeout_seconds < 5 and request.queue_timeout_seconds == 0
    assert journey.ids == [1, 2, 7, 8, 9] and journey.length == 5


def test_one_that_has_no_token_yet_is_asked_for_anew() -> None:
    journey = Journey(ask([1], 9, queue_timeout_seconds=3))
    journey.lost(0, died=True)
    request = journey.request()
    assert not request.HasField("resume") and request.timeout_seconds == 0
    assert 2 < request.queue_timeout_seconds < 3 and journey.expiry == pb.QUEUE_TIMEOUT


def test_a_prompt_is_told_once_and_its_logprobs_are_asked_for_until_then() -> None:
    request = ask([1], 9)
    request.sampling.prompt_logprobs = True
    journey = Journey(request)
    journey.lost(0, died=True)
    assert journey.request().sampling.prompt_logprobs
    assert journey.note(told(7, prompt=pb.Prompt(cached_tokens=1))).HasField("prompt")
    journey.lost(1, died=True)
    assert not journey.request().sampling.prompt_logprobs
    assert not journey.note(told(8, prompt=pb.Prompt(cached_tokens=2))).HasField("prompt")


def test_what_engines_count_is_summed_over_them() -> None:
    journey = Journey(ask([1], 9))
    assert journey.note(told(7, preemptions=1, sampling_steps=1, draft_tokens=3)).preemptions == 1
    journey.note(told(8, preemptions=1, sampling_steps=2, draft_tokens=6, accepted_draft_tokens=1))
    for engine in range(2):
        journey.lost(engine, died=True)
        last = journey.note(told(9, sampling_steps=1, draft_tokens=2, accepted_draft_tokens=2))
    assert (last.preemptions, last.sampling_steps, last.draft_tokens, last.accepted_draft_tokens) == (1, 4, 10, 5)


@pytest.mark.parametrize(("tokens", "deaths"), [(0, 3), (3, 3), (4, 8), (500, 8)])
def test_so_many_engines_may_die_with_it(tokens: int, deaths: int) -> None:
    """Three of which it got next to nothing, and eight in all."""
    journey, died = Journey(ask([1], 100_000)), 0
    while True:
        journey.note(told(*[7] * tokens))
        died += 1
        if journey.deadly:
            break
        journey.lost(died % 2, died=True)
    assert died == deaths


def test_engines_that_were_stopped_on_purpose_do_not_count() -> None:
    journey = Journey(ask([1], 9))
    for _ in range(20):
        journey.lost(0, died=False)
    assert not journey.deadly and journey.moved
