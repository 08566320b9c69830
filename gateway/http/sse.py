"""Server-sent events, and noticing that the client has left.

A stream's first event is awaited before its 200 is sent: whatever goes wrong until then is an ordinary 4xx or 5xx.
After that the stream ends with an error event of its dialect. A client that leaves cancels the work, in streams and
in plain answers alike; nothing here buffers, so a slow client slows its own stream only.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import ClientGone

KEEP_ALIVE_SECONDS = 15.0
EVENTS_PER_TURN = 32  # a generator that always has an event ready must not keep the loop from everybody else

Result = TypeVar("Result")
Events = AsyncGenerator[bytes, None]


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Await `work`, but cancel it and raise ClientGone if the client disconnects first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _stop(gone)
        await _stop(task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: "asyncio.Future[Any]") -> None:
    """Cancel and wait, so that whatever the task holds is given back when this returns."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


class EventStream(Response):
    """A 200 whose body is `first` and then `rest`.

    Args:
        first: bytes of the first event, already awaited.
        rest: the following events; closed whatever happens.
        failure: the bytes that end a stream which breaks with the given exception.
    """

    def __init__(
        self, first: bytes, rest: Events, failure: Callable[[Exception], bytes], headers: Mapping[str, str]
    ) -> None:
        super().__init__(media_type="text/event-stream", headers=dict(headers))
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self._first, self._rest, self._failure = first, rest, failure
        self._last_sent = 0.0

    @classmethod
    async def begin(
        cls,
        request: Request,
        events: Events,
        failure: Callable[[Exception], bytes],
        headers: Mapping[str, str],
    ) -> "EventStream":
        """Await the first event of `events`; what it raises is raised here."""
        try:
            first = await while_connected(request.receive, anext(events))
        except BaseException:
            await events.aclose()
            raise
        return cls(first, events, failure, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keep_alive: asyncio.Future[None] | None = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            keep_alive = asyncio.ensure_future(self._keep_alive(send))
            await while_connected(receive, self._write(send))
        except ClientGone:
            return
        finally:
            if keep_alive is not None:
                await _stop(keep_alive)
            await self._rest.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        count = 1
        try:
            async for event in self._rest:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._last_sent = clock()
                count += 1
                if count % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        except Exception as error:
            await send({"type": "http.response.body", "body": self._failure(error), "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        self._last_sent = clock()
        while True:
            quiet = clock() - self._last_sent
            if quiet >= KEEP_ALIVE_SECONDS:
                await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
                self._last_sent, quiet = clock(), 0.0
            await asyncio.sleep(KEEP_ALIVE_SECONDS - quiet)
