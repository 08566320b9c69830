"""Limits on requests, over real sockets: bodies that are huge, slow or too many, and too many requests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.http import request_limits
from gateway.http.request_limits import RequestLimit
from gateway.routes.openai.errors import OpenAIRoute
from gateway.routes.tgi.errors import TgiRoute
from gateway.routes.unrouted import refusal
from tests.gateway.listening import DEADLINE, LIMIT, Listening, application, listening, until_closed
from tests.processes import PATIENCE, until


@pytest.fixture
async def server() -> AsyncIterator[Listening]:
    async with listening(application()) as server:
        yield server


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(LIMIT // 100 + 1):
        yield b"x" * 100


@pytest.mark.parametrize("length", [0, 1, LIMIT])
async def test_a_body_within_the_limit_arrives_whole(server: Listening, length: int) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        assert (await http.post(server.url, content=b"x" * length)).text == str(length)


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
    monkeypatch.setattr(request_limits, "BODIES", 2)
    monkeypatch.setattr(request_limits, "SMALL", LIMIT // 2)
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
    async with listening(RequestLimit(application(), 2, (), refusal)) as server:
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
    async with listening(RequestLimit(app, 2, (), refusal)) as server:
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

    async with (
        listening(RequestLimit(busy, 2, ("/health",), refusal)) as server,
        httpx.AsyncClient(timeout=PATIENCE) as http,
    ):
        working = [asyncio.create_task(http.post(server.url + "/generate")) for _ in range(2)]
        await until(lambda: len(begun) == 2)
        refused = await http.post(server.url + path)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert isinstance(refused.json()["error"], dict) == path.startswith("/v1")
        assert (await http.get(server.url + "/health")).text == "done"
        release.set()
        assert [(await each).text for each in working] == ["done", "done"]
        assert (await http.post(server.url + path)).text == "done"
