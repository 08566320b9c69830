"""What a client may not do: endless heads, huge or slow bodies, answers it does not read. Over real sockets.

The routes are as in the application, one of each dialect, but answer with no more than the length of a body.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import guard, protocol
from gateway.connections import Connections
from gateway.front import HttpServer, http_config
from gateway.guard import BodyGuard, RequestLimit
from gateway.openai.errors import OpenAIRoute
from gateway.protocol import BODY_SECONDS, MAX_HEAD_BYTES
from gateway.tgi.errors import TgiRoute
from tests.processes import PATIENCE, is_busy, until

LIMIT = 1000
DEADLINE = 0.4  # seconds, where one is tested


async def echo(request: Request) -> Response:
    """Answers with the length of the body."""
    return PlainTextResponse(str(len(await request.body())))


async def hello() -> Response:
    return PlainTextResponse("hello")


async def stream() -> Response:
    """Answers without end, until the client is gone."""
    return StreamingResponse(endless())


def application(seconds: float = BODY_SECONDS) -> ASGIApp:
    app = FastAPI()
    for dialect, path in ((TgiRoute, "/"), (TgiRoute, "/generate"), (OpenAIRoute, "/v1/completions")):
        router = APIRouter(route_class=dialect)
        router.add_api_route(path, echo, methods=["POST"])
        app.include_router(router)
    app.add_api_route("/stream", stream)
    app.add_api_route("/", hello)
    return BodyGuard(app, LIMIT, seconds)


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
async def listening(app: ASGIApp, connections: int = 100) -> AsyncIterator[Listening]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(http_config(app, Connections(connections)))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    yield Listening(listener.getsockname()[1])
    server.should_exit = True
    await task


@pytest.fixture
async def server() -> AsyncIterator[Listening]:
    async with listening(application()) as server:
        yield server


@pytest.fixture
async def hasty(server: Listening, monkeypatch: pytest.MonkeyPatch) -> Listening:
    """A server with a short deadline for heads. What else is slow has its time, for the machine may be."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", DEADLINE)
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
    async with listening(application(DEADLINE)) as server:
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
    monkeypatch.setattr(protocol, "LAST_LOOK", 0.1)
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
MANY_CHUNKS = b"1\r\nx\r\n" * (protocol.MAX_CHUNKS + 1)


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
    monkeypatch.setattr(protocol, "STALL_SECONDS", DEADLINE)
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


async def test_a_request_refused_by_its_head_costs_no_body(server: Listening) -> None:
    """Its answer comes before the body does."""
    for head in (b"POST /nowhere", b"DELETE /generate"):
        reader, writer = await server.connect()
        writer.write(head + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 40")
        writer.close()


async def test_bodies_take_a_bounded_part_of_memory_together(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODIES", 2)
    monkeypatch.setattr(guard, "SMALL", LIMIT // 2)
    unfinished = []
    for _ in range(3):
        reader, writer = await server.connect()
        writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % LIMIT)
        writer.write(b"x" * (LIMIT - 1))
        unfinished.append((reader, writer))
    answered = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in unfinished]
    [refused], _ = await asyncio.wait(answered, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().startswith(b"HTTP/1.1 503") and b"retry-after: 1" in refused.result()
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        assert (await http.post(server.url, content=b"x" * (LIMIT // 2))).text == str(
            LIMIT // 2
        )  # small ones are taken
        for task, (_, writer) in zip(answered, unfinished, strict=True):
            task.cancel()
            writer.close()
        while (answer := await http.post(server.url, content=b"x" * LIMIT)).status_code == 503:
            await asyncio.sleep(0.01)  # until the server has seen them leave
        assert answer.text == str(LIMIT)


async def test_requests_whose_body_does_not_come_take_nobodys_place() -> None:
    async with listening(RequestLimit(application(), 2, ())) as server:
        half_sent = [await server.connect() for _ in range(5)]
        for _, writer in half_sent:
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            assert (await http.post(server.url, content=b"whole")).text == "5"
        for reader, writer in half_sent:
            writer.write(b"-sent")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_bodies_that_become_whole_at_once_are_no_more_requests_than_others(path: str) -> None:
    release, begun = asyncio.Event(), []

    async def patient(request: Request) -> Response:
        await request.body()
        begun.append(request)
        await release.wait()
        return PlainTextResponse("done")

    app = FastAPI()
    for dialect, each in ((TgiRoute, "/generate"), (OpenAIRoute, "/v1/completions")):
        router = APIRouter(route_class=dialect)
        router.add_api_route(each, patient, methods=["POST"])
        app.include_router(router)
    async with listening(RequestLimit(app, 2, ())) as server:
        clients = [await server.connect() for _ in range(3)]
        for _, writer in clients:
            writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nha" % path.encode())
        for _, writer in clients:
            writer.write(b"lf")
        await until(lambda: len(begun) == 2)
        answers = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in clients]
        [refused], _ = await asyncio.wait(answers, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().startswith(b"HTTP/1.1 503") and b"retry-after: 1" in refused.result()
        release.set()
        assert sorted([(await each)[:12] for each in answers])[:2] == [b"HTTP/1.1 200"] * 2
        for _, writer in clients:
            writer.close()


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_requests_at_work_are_bounded_and_probes_answer_all_the_same(path: str) -> None:
    release, begun = asyncio.Event(), []

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/health":
            begun.append(scope["path"])
            await release.wait()
        await PlainTextResponse("done")(scope, receive, send)

    async with listening(RequestLimit(busy, 2, ("/health",))) as server, httpx.AsyncClient(timeout=PATIENCE) as http:
        working = [asyncio.create_task(http.post(server.url + "/generate")) for _ in range(2)]
        await until(lambda: len(begun) == 2)
        refused = await http.post(server.url + path)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert isinstance(refused.json()["error"], dict) == path.startswith("/v1")
        assert (await http.get(server.url + "/health")).text == "done"
        release.set()
        assert [(await each).text for each in working] == ["done", "done"]
        assert (await http.post(server.url + path)).text == "done"
