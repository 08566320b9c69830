"""A small application behind the real protocol on a real socket: routes of each dialect that answer with the length of
a request's body.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp

from gateway.http.connections import Connections
from gateway.http.h11_protocol import BODY_SECONDS
from gateway.http.request_limits import BodyGuard
from gateway.processes.http_process import HttpServer, http_config
from gateway.routes.openai.errors import OpenAIRoute
from gateway.routes.tgi.errors import TgiRoute
from gateway.routes.unrouted import refusal
from tests.processes import PATIENCE

LIMIT = 1000
DEADLINE = 0.4  # seconds, in tests of deadlines


async def echo(request: Request) -> Response:
    """Answer with the length of the body."""
    return PlainTextResponse(str(len(await request.body())))


async def hello() -> Response:
    return PlainTextResponse("hello")


async def stream() -> Response:
    """Answer without end, until the client is gone."""
    return StreamingResponse(endless())


def application(seconds: float = BODY_SECONDS) -> ASGIApp:
    app = FastAPI()
    for dialect, path in ((TgiRoute, "/"), (TgiRoute, "/generate"), (OpenAIRoute, "/v1/completions")):
        router = APIRouter(route_class=dialect)
        router.add_api_route(path, echo, methods=["POST"])
        app.include_router(router)
    app.add_api_route("/stream", stream)
    app.add_api_route("/", hello)
    return BodyGuard(app, LIMIT, refusal, seconds)


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


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection; what came."""
    return await asyncio.wait_for(reader.read(), PATIENCE)
