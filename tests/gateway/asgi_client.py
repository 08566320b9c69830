"""A client at the application's own interface, ASGI: it can leave, or stop reading, at an exact moment."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp


class Connection:
    """One request, whose client can leave or stop reading, and every message sent to it."""

    def __init__(self, app: ServedApp, path: str, body: dict[str, Any]) -> None:
        self._app, self._path, self._body = app, path, json.dumps(body).encode()
        self._left = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        self._asked = False
        self.messages: list[dict[str, Any]] = []

    def leave(self) -> None:
        self._left.set()

    def stop_reading(self) -> None:
        self._reads.clear()

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.messages).decode()

    async def run(self) -> None:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": self._path, "raw_path": self._path.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"content-type", b"application/json")], "client": ("c", 1), "server": ("s", 1),
        }  # fmt: skip
        await self._app.asgi(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._reads.wait()
        self.messages.append(message)


def pace(app: ServedApp, before_event: Callable[[int], Awaitable[None]]) -> None:
    """Make the fake engine await `before_event` before each event of a request, which it counts from 0."""
    generate = app.engine.generate

    async def paced(request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        async with aclosing(generate(request)) as events:
            count = 0
            async for event in events:
                await before_event(count)
                count += 1
                yield event

    app.engine.generate = paced  # type: ignore[method-assign]
