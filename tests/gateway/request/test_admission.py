"""How many requests are admitted, and what refused requests are told."""

import pytest

from gateway.errors import Kind, RequestError
from gateway.request.admission import Admission, Overloaded, Throughput
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import serve


def test_permits_are_bounded_and_come_back_however_a_request_ends() -> None:
    admission = Admission(3, 1000)
    with admission.request(2), admission.request():
        assert admission.active == 3
        with pytest.raises(Overloaded, match="overloaded"), admission.request():
            pass
    with pytest.raises(RuntimeError), admission.request(3):
        raise RuntimeError
    assert admission.active == 0 and admission.queued_tokens == 0


def test_more_copies_than_there_are_permits_is_not_an_overload() -> None:
    with (
        pytest.raises(RequestError, match="asks for 4 sequences, the server runs at most 3") as refused,
        Admission(3, 10).request(4),
    ):
        pass
    assert refused.value.kind is Kind.INVALID


def test_queued_tokens_are_bounded_until_the_first_token() -> None:
    admission = Admission(10, 100)
    with admission.request() as first, admission.request() as second:
        first.queue(80)
        with pytest.raises(Overloaded):
            second.queue(30)
        first.started()
        first.started()
        second.queue(30)
        assert admission.queued_tokens == 30
    assert admission.queued_tokens == 0


def test_one_prompt_alone_is_let_in_however_long() -> None:
    with Admission(10, 100).request() as ticket:
        ticket.queue(5000)


def test_throughput_counts_busy_time_only_and_follows_a_change() -> None:
    throughput = Throughput()
    throughput.observe(0, pb.Stats())  # a heartbeat
    assert throughput.tokens_per_second == 0
    throughput.observe(0, pb.Stats(step_prefill_tokens=90, step_decode_tokens=10, step_seconds=1))
    assert throughput.tokens_per_second == 100
    for _ in range(100):
        throughput.observe(0, pb.Stats(step_decode_tokens=200, step_seconds=1))
    assert throughput.tokens_per_second == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "hello"}),
        ("/generate_stream", {"inputs": "hello"}),
        ("/v1/completions", {"model": "mock/model", "prompt": "hello", "max_tokens": 3}),
        ("/v1/completions", {"model": "mock/model", "prompt": "hello", "max_tokens": 3, "stream": True}),
    ],
)
async def test_a_full_server_answers_429_with_advice_and_recovers(path: str, body: dict[str, object]) -> None:
    async with serve() as app:
        with app.gateway.admission.request(app.gateway.admission.max_requests):
            refused = await app.post(path, body)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "overloaded" in refused.text
        assert (await app.post(path, body)).status_code == 200
        assert not app.engine.open and app.gateway.admission.active == 0
