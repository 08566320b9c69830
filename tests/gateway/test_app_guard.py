"""What a client may not do: endless heads, huge or slow bodies, answers it does not read. Over real sockets."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import guard
from gateway.front import HttpServer
from gateway.guard import MAX_HEAD_BYTES, BodyGuard, TimedProtocol
from tests.processes import PATIENCE, until

LIMIT = 1000
DEADLINE = 0.4  # seconds, where one is tested


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body; under /stream without end, until the client is gone."""
    if scope["path"] == "/stream":
        await StreamingResponse(endless())(scope, receive, send)
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await PlainTextResponse(str(len(body)))(scope, receive, send)


STREAMING = {"now": 0}


async def endless() -> AsyncIterator[bytes]:
    STREAMING["now"] += 1
    try:
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)  # a generator that never waits keeps the loop from seeing the client leave
    finally:
        STREAMING["now"] -= 1


@dataclass
class Listening:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[Listening]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=TimedProtocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )  # fmt: skip
    server = HttpServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    yield Listening(listener.getsockname()[1])
    server.should_exit = True
    await task


@pytest.fixture
async def server() -> AsyncIterator[Listening]:
    async with listening(BodyGuard(echo, LIMIT)) as server:
        yield server


@pytest.fixture
async def hasty(server: Listening, monkeypatch: pytest.MonkeyPatch) -> Listening:
    """A server with a short deadline for heads. What else is slow has its time, for the machine may be."""
    monkeypatch.setattr(guard, "HEAD_SECONDS", DEADLINE)
    return server


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What still comes."""
    return await asyncio.wait_for(reader.read(), PATIENCE)


@pytest.mark.parametrize("length", [0, 1, LIMIT])
async def test_a_body_within_the_limit_arrives_whole(server: Listening, length: int) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        assert (await http.post(server.url, content=b"x" * length)).text == str(length)


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(LIMIT // 100 + 1):
        yield b"x" * 100


@pytest.mark.parametrize("content", [lambda: b"x" * (LIMIT + 1), pieces], ids=["declared", "chunked"])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_a_body_above_the_limit_is_413_naming_the_limit(
    server: Listening, content: Callable[[], bytes | AsyncIterator[bytes]], path: str
) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        answer = await http.post(server.url + path, content=content())
    assert answer.status_code == 413 and f"longer than {LIMIT} bytes" in answer.text
    assert isinstance(answer.json()["error"], dict) == path.startswith("/v1")
    assert path.startswith("/v1") or answer.json()["error_type"] == "validation"
    assert answer.headers["connection"] == "close"


async def test_a_declared_length_above_the_limit_is_refused_before_the_body_is_sent(server: Listening) -> None:
    reader, writer = await server.connect()
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 413")
    writer.close()


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_a_body_of_two_lengths_is_refused_and_what_follows_is_no_request(
    server: Listening, method: bytes
) -> None:
    reader, writer = await server.connect()
    lengths = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    writer.write(method + b" / HTTP/1.1\r\nhost: x\r\n" + lengths + b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    writer.close()


async def test_a_body_that_does_not_come_is_408() -> None:
    async with listening(BodyGuard(echo, LIMIT, DEADLINE)) as server:
        began = time.monotonic()
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        answer = await until_closed(reader)
        assert answer.startswith(b"HTTP/1.1 408") and b"error_type" not in answer
        assert time.monotonic() - began >= DEADLINE
        writer.close()


@pytest.mark.parametrize(
    "head", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n", b"G"], ids=["nothing", "half a head", "a byte"]
)
async def test_a_head_that_does_not_come_costs_the_connection(hasty: Listening, head: bytes) -> None:
    began = time.monotonic()
    reader, writer = await hasty.connect()
    writer.write(head)
    assert await until_closed(reader) == b""
    assert time.monotonic() - began >= DEADLINE
    writer.close()


async def test_dripping_a_head_does_not_extend_its_deadline(hasty: Listening) -> None:
    reader, writer = await hasty.connect()

    async def drip() -> None:
        with contextlib.suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    await until_closed(reader)
    dripping.cancel()
    writer.close()


async def test_the_deadline_counts_for_later_requests_of_a_connection_too(hasty: Listening) -> None:
    reader, writer = await hasty.connect()
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), PATIENCE)
    began = time.monotonic()
    writer.write(b"GET / HT")
    await until_closed(reader)
    assert time.monotonic() - began >= DEADLINE
    writer.close()


async def test_a_connection_at_work_is_not_cut_by_the_heads_deadline(hasty: Listening) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http, http.stream("GET", hasty.url + "/stream") as answer:
        began = time.monotonic()
        async for _ in answer.aiter_bytes():
            if time.monotonic() - began > 3 * DEADLINE:
                break


async def test_a_head_beyond_its_size_is_refused(server: Listening) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * (2 * MAX_HEAD_BYTES) + b"\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_a_client_that_stops_reading_is_cut_and_its_stream_ends(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "STALL_SECONDS", DEADLINE)
    reader, writer = await server.connect()
    writer.write(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.transport.pause_reading()
    await until(lambda: STREAMING["now"] == 0)
    writer.close()
