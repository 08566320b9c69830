"""What a client may not do to the server before a route sees it: be endless, be huge, be slow.

`BodyGuard` reads the whole body, within a size and a time, before it calls the application, so no route can forget.
`TimedProtocol` does the same for the request's head, which uvicorn itself waits for without limit, be it a connection's
first request or a later one; and it cuts a client that has stopped reading its answer, which would keep its permit.
"""

import asyncio
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.plain import plain_error

HEAD_SECONDS = 10.0
BODY_SECONDS = 30.0
STALL_SECONDS = 30.0
MAX_HEAD_BYTES = 64 << 10


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyGuard:
    """ASGI: refuse a body above `limit` bytes with 413, one not complete after `seconds` with 408, and one of two
    lengths with 400, by which a second request is smuggled past a proxy (RFC 9112, 6.1).
    """

    def __init__(self, app: ASGIApp, limit: int, seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and {b"content-length", b"transfer-encoding"} <= dict(scope["headers"]).keys():
            await _refuse(scope, send, 400, "The request has both a content-length and a transfer-encoding")
            return
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self._seconds)
        except TimeoutError:
            await _refuse(scope, send, 408, f"The request body took longer than {self._seconds:g} seconds")
        except _Refused as refusal:
            await _refuse(scope, send, refusal.status, str(refusal))
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None if the client left while sending it."""
        too_long = _Refused(413, f"The request body is longer than {self._limit} bytes")
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > self._limit:  # h11 has checked that it is a number
                raise too_long
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                raise too_long
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives `body` once and then whatever the connection says."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


async def _refuse(scope: Scope, send: Send, status: int, message: str) -> None:
    """Answer and close: the rest of the body, still on its way, is nobody's request."""
    response = plain_error(scope["path"], status, message)
    response.headers["connection"] = "close"
    await response(scope, _never, send)


async def _never() -> Message:
    return {"type": "http.disconnect"}


class TimedProtocol(H11Protocol):
    """uvicorn's h11 protocol with a deadline for each request's head, and for a client to go on reading."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stall_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._stall_timer)
        self._stop_head_timer()
        super().connection_lost(exc)

    def _time_head(self) -> None:
        """Run the timer while a request's first byte has come, or the connection is new, but no whole head."""
        waiting = self.conn.their_state is h11.IDLE and (self.cycle is None or bool(self.conn.trailing_data[0]))
        if not waiting:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_head_timer(self) -> None:
        _cancel(self._head_timer)
        self._head_timer = None


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
