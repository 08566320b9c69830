"""Limits on requests before a route sees them: the size and duration of bodies, and the number of requests.

`BodyGuard` bounds the size and the time of a body, and the size of all bodies together. It reads nothing itself, so a
request that is refused by its head (no such route, no key, not JSON) costs no more than its head. `RequestLimit` bounds
the requests at work. `gateway.http.h11_protocol` bounds what a client can do to a connection.
"""

import asyncio
from collections.abc import Callable, Collection

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Kind, RequestError
from gateway.http.h11_protocol import BODY_SECONDS, MAX_HEAD_BYTES

Refuse = Callable[[str, RequestError], Response]  # words an error in the dialect spoken at a path

BODIES = 64  # bodies of the largest size: all bodies together may hold so much
RAISED_BODIES = 8  # or so many of the raised limit
SMALL = 64 << 10  # bytes of a body that are always read, as a head of that size is
RETRY_SECONDS = 1  # advised to a client: so soon most requests at work are over


class BodyGuard:
    """ASGI: refuses bodies that are too long, too slow or ambiguous.

    413: the body is longer than `limit` bytes. 408: it is not complete after `seconds`. 400: it states two lengths, by
    which a second request can be smuggled past a proxy (RFC 9112, 6.1). 431: the head is too long. 503: the body is
    longer than `SMALL` bytes, and all bodies together hold more than `BODIES` of `limit` bytes.

    Args:
        raised: a limit that counts instead where it is higher, which only the running server knows.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        refuse: Refuse,
        seconds: float = BODY_SECONDS,
        raised: Callable[[], int] = lambda: 0,
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._usual, self._raised = limit, raised
        self._seconds = seconds
        self._held = 0  # bytes of all bodies that are being read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif error := self._error(scope):
            refusal = self._refuse(scope["path"], error)
            refusal.headers["connection"] = "close"
            await refusal(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)

    def _error(self, scope: Scope) -> RequestError | None:
        """The error in the request's head; None if there is none."""
        headers = dict(scope["headers"])
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD_BYTES:
            message = f"The request's headers are longer than {MAX_HEAD_BYTES} bytes"
            return RequestError(Kind.HEAD_TOO_LONG, message)
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            message = "The request has both a content-length and a transfer-encoding"
            return RequestError(Kind.TWO_LENGTHS, message)
        if int(headers.get(b"content-length", 0)) > self._limit:  # h11 has checked that it is a number
            return self._too_long()
        return None

    @property
    def _limit(self) -> int:
        return max(self._usual, self._raised())

    @property
    def _together(self) -> int:
        """Bytes that all bodies may hold."""
        return max(BODIES * self._usual, RAISED_BODIES * self._raised())

    def _too_long(self) -> RequestError:
        return RequestError(Kind.BODY_TOO_LONG, f"The request body is longer than {self._limit} bytes")

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        deadline = asyncio.get_running_loop().time() + self._seconds
        size, complete = 0, False

        async def bounded() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                slow = f"The request body took longer than {self._seconds:g} seconds"
                raise RequestError(Kind.BODY_TIMEOUT, slow) from None
            length = len(message.get("body", b""))
            size, self._held = size + length, self._held + length
            complete = not message.get("more_body", False)
            if size > self._limit:
                raise self._too_long()
            if size > SMALL and self._held > self._together:
                raise RequestError(Kind.UNAVAILABLE, "too many large requests at once", retry_after=RETRY_SECONDS)
            if complete:
                release()
            return message

        def release() -> None:
            nonlocal size
            size, self._held = 0, self._held - size

        try:
            await self._app(scope, bounded, send)
        finally:
            release()


class RequestLimit:
    """ASGI: with `limit` requests at work a further one is a 503. Requests to the `exempt` paths are always answered:
    they are probes, by which an operator sees that the server is full, and take no time.

    A request that waits for its body is not at work: its client could let it wait at no cost, so it must not take the
    place of another. `gateway.http.connections` bounds how many wait.
    """

    def __init__(self, app: ASGIApp, limit: int, exempt: Collection[str], refuse: Refuse) -> None:
        self._app = app
        self._refuse = refuse
        self._limit, self._exempt = limit, exempt
        self._working = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in ("GET", "HEAD") and scope["path"] in self._exempt):
            await self._app(scope, receive, send)
            return
        if self._working >= self._limit:
            refusal = self._refuse(scope["path"], self._too_many())
            refusal.headers["connection"] = "close"
            await refusal(scope, receive, send)
            return
        self._working += 1
        try:
            await self._app(scope, self._waiting(receive), send)
        finally:
            self._working -= 1

    def _waiting(self, receive: Receive) -> Receive:
        """`receive`, which does not count its request as at work while the body is incomplete."""
        whole = False

        async def waiting() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            self._working -= 1
            try:
                message = await receive()
            finally:
                self._working += 1
            whole = not message.get("more_body", False)
            if whole and self._working > self._limit:
                raise self._too_many()
            return message

        return waiting

    def _too_many(self) -> RequestError:
        message = f"more than {self._limit} requests at once"
        return RequestError(Kind.UNAVAILABLE, message, retry_after=RETRY_SECONDS)
