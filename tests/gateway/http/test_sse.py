"""Streams of events: what ends them, what keeps them open, and what is given back.

Most tests speak ASGI, where a client can leave or stop reading at an exact moment.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest
from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.types import Receive, Scope, Send

from gateway.http import h11_protocol, sse
from gateway.http.sse import EventStream
from tests.gateway.asgi_client import Connection, pace
from tests.gateway.fixtures import ServedApp, events, serve
from tests.gateway.listening import listening
from tests.processes import PATIENCE, until

BODIES: dict[str, dict[str, Any]] = {
    "/generate_stream": {"inputs": "lo"},
    "/v1/completions": {"prompt": "lo", "stream": True, "n": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "lo"}], "stream": True},
}
TURNS = 10  # of the event loop in one step of an engine: less than a millisecond


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and timeouts in no time."""
    monkeypatch.setattr(sse, "PING_SECONDS", 0.02)
    monkeypatch.setattr(sse, "SEND_SECONDS", 0.02)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def is_free(app: ServedApp) -> bool:
    """Whether nothing is left of any request."""
    return app.engine.open == 0 and app.gateway.admission.active == 0


def events_of(*contents: bytes) -> AsyncGenerator[bytes, None]:
    async def generate() -> AsyncGenerator[bytes, None]:
        for content in contents:
            yield content

    return generate()


async def write(stream: EventStream) -> list[dict[str, Any]]:
    """Every message of a stream whose client reads and stays."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    await stream({"type": "http", "method": "POST"}, receive, send)
    return messages


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_costs_the_engine_two_steps_at_most(path: str) -> None:
    async with serve() as app:
        connection = Connection(app, path, BODIES[path])
        steps: list[int] = []

        async def step(count: int) -> None:
            steps.append(count)
            if len(steps) == 5:
                connection.leave()
            await turns(TURNS)

        pace(app, step)
        await asyncio.wait_for(connection.run(), PATIENCE)
        copies = BODIES[path].get("n", 1)
        assert len(steps) <= 5 + 2 * copies
        assert len(app.engine.cancelled) == copies
        assert is_free(app)


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_stops_reading_loses_its_request_before_its_connection(path: str, hasty: None) -> None:
    async with serve() as app:
        connection = Connection(app, path, BODIES[path])

        async def step(count: int) -> None:
            if count == 2:
                connection.stop_reading()

        pace(app, step)
        running = asyncio.create_task(connection.run())
        await until(lambda: is_free(app) and app.engine.cancelled)
        assert not running.done()  # or uvicorn would take it for a bug
        connection.leave()
        await asyncio.wait_for(running, PATIENCE)
        assert app.gateway.metrics.registry.get_sample_value("tgi_request_failure_total", {"err": "dropped"}) == 1


async def test_a_stream_whose_client_reads_on_too_late_ends_instead_of_hanging(
    hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "CLOSE_SECONDS", 0.1)
    reads = asyncio.Event()

    async def send(message: Any) -> None:
        await reads.wait()

    async def receive() -> Any:
        await asyncio.Event().wait()  # it stays

    async def silent() -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    scope = {"type": "http", "method": "POST"}
    response = asyncio.create_task(EventStream(b"first", silent(), lambda _: b"", {})(scope, receive, send))
    await asyncio.wait_for(response, PATIENCE)


async def test_a_client_that_stops_reading_is_cut_over_a_socket_without_a_word_in_the_log(
    hasty: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(h11_protocol, "STALL_SECONDS", 1.0)
    ended: list[str] = []

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            ended.append("request")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await EventStream(b"first", endless(), lambda _: b"", {})(scope, receive, send)
        ended.append("connection")

    with caplog.at_level(logging.INFO):
        async with listening(app) as server:
            reader, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.wait_for(reader.readline(), PATIENCE)
            writer.transport.pause_reading()
            await until(lambda: len(ended) == 2)
            writer.close()
    assert ended == ["request", "connection"]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_a_quiet_stream_is_kept_alive_by_comments_and_no_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.02)
    async with serve() as app:
        connection = Connection(app, "/generate_stream", BODIES["/generate_stream"])

        async def step(count: int) -> None:
            if count == 1:
                await until(lambda: connection.text.count("\n:\n") >= 3)

        pace(app, step)
        await connection.run()
    blocks = connection.text.split("\n\n")
    assert blocks.count(":") >= 3
    assert len([block for block in blocks if block.startswith("data: ")]) == 6
    bodies = [message["body"] for message in connection.messages[1:]]
    before_comments = {previous for previous, body in pairwise(bodies) if body == b":\n\n"}
    assert before_comments == {b"", b":\n\n"}  # never an event: the first look after one says nothing


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_breaks_ends_with_an_error_event_of_its_dialect(path: str) -> None:
    async with serve() as app:
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 2
        response = await app.post(path, BODIES[path])
        *whole, last = events(response)
    assert response.status_code == 200 and whole
    if path.startswith("/v1"):
        error = {"message": "the engine stopped", "type": "server_error", "param": None, "code": "engine_unavailable"}
        assert last == {"error": error}
    else:
        assert last == {"error": "the engine stopped", "error_type": "unavailable"}


async def test_what_a_request_holds_is_given_back_when_its_response_returns() -> None:
    """However many turns of the loop its clean-up takes."""
    given_back = asyncio.Event()
    left = asyncio.Event()

    async def holding() -> AsyncGenerator[bytes, None]:
        try:
            left.set()
            await asyncio.Event().wait()
            yield b""
        finally:
            await turns(TURNS)
            given_back.set()

    async def send(message: Any) -> None: ...

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    stream = EventStream(b"first", holding(), lambda _: b"", {})
    await asyncio.wait_for(stream({"type": "http", "method": "POST"}, receive, send), PATIENCE)
    assert given_back.is_set()


async def test_a_stream_is_written_byte_for_byte_and_ends_with_an_empty_message() -> None:
    first, *rest = b"data: {}\n\n", b"data: \xff\r\x85 as it is", b"x"
    messages = await write(EventStream(first, events_of(*rest), lambda _: b"", {"x-request-id": "7"}))
    assert [message.get("body") for message in messages] == [None, first, *rest, b""]
    assert [message.get("more_body") for message in messages] == [None, True, True, True, False]
    assert dict(messages[0]["headers"]) == {
        b"x-request-id": b"7",
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
    }


async def test_a_signal_ends_no_stream_before_the_launcher_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppStatus, "should_exit", True)  # the library's mark of one
    async with serve() as app:
        assert len(events(await app.post("/generate_stream", inputs="lo"))) == 6


async def test_answers_do_not_reach_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await write(EventStream(b"private", events_of(b"private"), lambda _: b"", {}))
    assert "private" not in caplog.text


def test_what_is_used_and_replaced_of_the_library_is_there() -> None:
    """Private names, which a new version may change."""
    assert hasattr(EventSourceResponse, "_stream_response")
    assert inspect.iscoroutinefunction(EventSourceResponse._ping)
    assert inspect.iscoroutinefunction(EventSourceResponse._listen_for_disconnect)
    assert hasattr(EventSourceResponse(events_of()), "_send_lock")


def test_a_request_is_given_up_before_its_connection() -> None:
    assert sse.PING_SECONDS + sse.SEND_SECONDS <= h11_protocol.STALL_SECONDS
