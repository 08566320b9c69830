"""Deadlines: the engine gets them, and each has its own status in each dialect."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp, serve

REQUESTS = (("/generate", {"inputs": "lo"}), ("/v1/completions", {"prompt": "lo"}))


def end_with(app: ServedApp, finish: "pb.FinishReason") -> None:
    async def generate(request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        yield pb.RequestEvent(finish=finish)

    app.engine.generate = generate  # type: ignore[method-assign]


async def test_the_engine_gets_both_deadlines() -> None:
    async with serve(request_timeout=9.0, queue_timeout=3.0) as app:
        for path, body in REQUESTS:
            await app.post(path, body)
        for request in app.engine.requests:
            assert 0 < request.timeout_seconds <= 9
            assert request.queue_timeout_seconds == 3


async def test_zero_means_no_deadline() -> None:
    async with serve(request_timeout=0.0, queue_timeout=0.0) as app:
        await app.post(*REQUESTS[0])
        [request] = app.engine.requests
        assert (request.timeout_seconds, request.queue_timeout_seconds) == (0, 0)


@pytest.mark.parametrize(
    ("finish", "limit"), [(pb.QUEUE_TIMEOUT, "3 s (--queue-timeout)"), (pb.DEADLINE, "9.5 s (--request-timeout)")]
)
async def test_a_missed_deadline_names_its_limit_and_option(finish: "pb.FinishReason", limit: str) -> None:
    async with serve(request_timeout=9.5, queue_timeout=3.0) as app:
        end_with(app, finish)
        for path, body in REQUESTS:
            assert limit in (await app.post(path, body)).text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_queue_timeout_is_429_and_a_request_timeout_504(stream: bool) -> None:
    async with serve() as app:
        for finish, status in ((pb.QUEUE_TIMEOUT, 429), (pb.DEADLINE, 504)):
            end_with(app, finish)
            for path, body in REQUESTS:
                path = "/generate_stream" if stream and path == "/generate" else path
                response = await app.post(path, {**body, "stream": stream})
                assert response.status_code == status
                assert ("retry-after" in response.headers) is (status == 429)
    await asyncio.sleep(0)
