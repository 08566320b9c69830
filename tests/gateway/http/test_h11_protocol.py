"""Limits on connections, over real sockets: endless heads, answers that nobody reads, clients that leave, too many
connections.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gateway.http import h11_protocol
from gateway.http.h11_protocol import MAX_HEAD_BYTES
from tests.gateway.listening import DEADLINE, STREAMING, Listening, application, listening, until_closed
from tests.processes import PATIENCE, is_busy, until


@pytest.fixture
async def server() -> AsyncIterator[Listening]:
    async with listening(application()) as server:
        yield server


@pytest.fixture
async def hasty(server: Listening, monkeypatch: pytest.MonkeyPatch) -> Listening:
    """A server with a short deadline for heads. What else is slow has its time, for the machine may be."""
    monkeypatch.setattr(h11_protocol, "HEAD_SECONDS", DEADLINE)
    return server


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
    await asyncio.wait_for(reader.readuntil(b"hello"), PATIENCE)
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


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES + 1, 100_000, 5_000_000])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_head_beyond_its_size_is_431_however_it_arrives(server: Listening, size: int, at_once: bool) -> None:
    """Also one that the system hands over whole, and one that is refused long before it is sent."""
    reader, writer = await server.connect()
    head = b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * size + b"\r\n\r\n"
    for part in [head] if at_once else [head[:40_000], head[40_000:]]:
        writer.write(part)
        await writer.drain()
    answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 431") and b"connection: close" in answer and b'"error"' in answer
    writer.close()


async def test_a_client_in_the_middle_of_a_body_that_is_refused_can_read_why(server: Listening) -> None:
    reader, writer = await server.connect()
    writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n")
    for _ in range(80):
        writer.write(b"x" * 100_000)
        await writer.drain()
    assert (await until_closed(reader)).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_what_is_no_http_is_400_in_json(server: Listening) -> None:
    reader, writer = await server.connect()
    writer.write(b"hello there\r\n\r\n")
    answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 400") and b'{"error": ' in answer
    writer.close()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_client_that_ends_its_sending_after_the_request_is_answered(version: bytes) -> None:
    release = asyncio.Event()

    async def later(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await PlainTextResponse("the answer")(scope, receive, send)

    async with listening(later) as server:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/" + version + b"\r\nhost: x\r\n\r\n")
        writer.write_eof()
        await asyncio.sleep(0.1)  # in which its end arrives: the order does not matter to the outcome
        release.set()
        answer = await until_closed(reader)
        assert answer.endswith(b"the answer")
        assert answer.startswith(b"HTTP/1.1 100" if version == b"1.1" else b"HTTP/1.1 200")
        writer.close()


async def test_a_client_that_leaves_before_its_answer_is_noticed_at_once() -> None:
    """It looks like one that has only ended its sending, until something is sent to it."""
    waiting, left = asyncio.Event(), asyncio.Event()

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        waiting.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with listening(patient) as server:
        _, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(waiting.wait(), PATIENCE)
        began = time.monotonic()
        writer.close()
        await asyncio.wait_for(left.wait(), PATIENCE)
        assert time.monotonic() - began < 1 or is_busy()


async def test_requests_sent_before_the_end_are_all_answered(server: Listening) -> None:
    reader, writer = await server.connect()
    writer.write(2 * b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc")
    writer.write_eof()
    assert (await until_closed(reader)).count(b"HTTP/1.1 200 OK") == 2
    writer.close()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("behind", [b"", b"\r\n"], ids=["nothing behind it", "a line behind it"])
async def test_a_client_that_leaves_before_its_answer_is_noticed(
    version: bytes, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of HTTP/1.0 cannot be asked, and may be an older nginx whose own client has left: it is given up."""
    monkeypatch.setattr(h11_protocol, "LAST_POLL", 0.1)
    waiting, left = asyncio.Event(), asyncio.Event()

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        listening_on = asyncio.create_task(receive())
        waiting.set()
        assert (await listening_on)["type"] == "http.disconnect"
        left.set()

    async with listening(patient) as server:
        _, writer = await server.connect()
        writer.write(b"GET / HTTP/" + version + b"\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(waiting.wait(), PATIENCE)
        await asyncio.sleep(0)  # until it listens
        writer.write(behind)
        writer.close()
        await asyncio.wait_for(left.wait(), PATIENCE)


def broken(log: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the protocol could not deal with."""
    return [each for each in log.records if each.name == "uvicorn.error" and each.exc_info]


BAD_CHUNK = b"ZZ\r\n"
MANY_CHUNKS = b"1\r\nx\r\n" * (h11_protocol.MAX_CHUNKS + 1)


@pytest.mark.parametrize("path", [b"/", b"/nowhere"], ids=["wanted", "unwanted"])
@pytest.mark.parametrize("body", [BAD_CHUNK, MANY_CHUNKS], ids=["bad", "in too many chunks"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_body_that_is_no_http_has_one_answer_and_ends_the_connection(
    server: Listening, caplog: pytest.LogCaptureFixture, path: bytes, body: bytes, at_once: bool
) -> None:
    """Be it known before the answer to its head or after it."""
    loop_errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    reader, writer = await server.connect()
    head = b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    first = b""
    for part in [head + body] if at_once else [head, body]:
        writer.write(part)
        if path == b"/nowhere" and not at_once and not first:
            first = await reader.readuntil(b"\r\n\r\n")
    answer = first + await until_closed(reader)
    assert answer.count(b"HTTP/1.1 40") == 1 and answer.count(b"HTTP/1.1 ") == 1
    assert b"chunks" in answer or body is BAD_CHUNK or first
    assert not loop_errors and not broken(caplog)
    writer.close()


@pytest.mark.parametrize("head", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"])
async def test_what_comes_behind_the_last_request_of_a_connection_is_ignored(head: bytes) -> None:
    """As old clients send a line's end behind a body."""
    begun, release = asyncio.Event(), asyncio.Event()

    async def later(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await release.wait()
        await PlainTextResponse("the answer")(scope, receive, send)

    async with listening(later) as server:
        reader, writer = await server.connect()
        writer.write(head)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        writer.write(b"\r\n")
        await asyncio.sleep(0.1)  # in which it arrives
        release.set()
        answer = await until_closed(reader)
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"the answer")
        writer.close()


async def test_a_connection_is_timed_also_after_the_late_body_of_a_refused_request(hasty: Listening) -> None:
    reader, writer = await hasty.connect()
    writer.write(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b'Not Found"}'), PATIENCE)
    writer.write(b"abc")
    assert await until_closed(reader) == b""
    writer.close()


async def test_the_end_of_the_server_waits_for_no_body(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(application()) as server:
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            await http.get(server.url)  # until the other has come
    assert not broken(caplog)
    with contextlib.suppress(ConnectionError):
        assert await until_closed(reader) == b""
    writer.close()


async def test_a_client_that_stops_reading_is_cut_and_its_stream_ends(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h11_protocol, "STALL_SECONDS", DEADLINE)
    reader, writer = await server.connect()
    writer.write(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.transport.pause_reading()
    await until(lambda: STREAMING["now"] == 0)
    writer.close()


async def test_too_many_connections_cost_those_that_have_waited_longest() -> None:
    half_sent = [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"]
    async with listening(application(), connections=10) as server:
        working, writer = await server.connect()
        writer.write(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await working.readline()).startswith(b"HTTP/1.1 200")
        idle = [await server.connect() for _ in range(30)]
        for number, (_, half) in enumerate(idle):
            half.write(half_sent[number % 3])
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            assert (await http.get(server.url)).text == "hello"
        for reader, _ in idle[:20]:
            assert await until_closed(reader) == b""
        assert not idle[-1][0].at_eof()
        assert await working.readexactly(1 << 20)  # it never waited
        for _, each in [*idle, (working, writer)]:
            each.close()
