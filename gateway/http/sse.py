"""Server-sent events: sse-starlette's `EventSourceResponse`, and what it lacks.

A stream's first event is awaited before its 200 is sent: whatever goes wrong until then is an ordinary 4xx or 5xx.
After that the stream ends with an error event of its dialect. Nothing is buffered here, so a client that reads slowly
slows its own stream only.

The library makes the response, keeps the connection alive and notices that the client has left or has stopped reading.
Three of its parts are replaced:

- The task group. The library's, anyio's, makes 580 function calls a stream, which is 0.2 to 0.6 ms, or 12 % of a short
  request. It also cancels every `await` of a generator's clean-up again; here a stream is cancelled once, and its
  request has been given back when the response returns.
- The writer. The library's opens a cancel scope around every event, which costs 8 us where a whole event costs 25 to
  50, and writes every event into the debug log.
- The shutdown. The library polls uvicorn's signal handler, and cuts all streams when a signal comes; here the launcher
  drains (`gateway.processes.http_process`), and then ends the events of every stream with an error.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping

from fastapi import Request
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

from gateway.http.disconnect import disconnected, stop, while_connected

# Between pings. A ping is a comment only if no event was sent since the last ping, so a client of a silent stream gets
# one after 7.5 to 15 s.
PING_SECONDS = 7.5
SEND_SECONDS = 22.5  # that a ping may take; `gateway.http.h11_protocol` closes a connection that is not read for 30
CLOSE_SECONDS = 8.5  # within which the protocol closes that connection
EVENTS_PER_TURN = 32  # written in one turn of the event loop, by a generator that always has an event ready
COMMENT = b":\n\n"  # as TGI's; clients ignore it

Events = AsyncGenerator[bytes, None]


class EventStream(EventSourceResponse):
    """A 200 whose body is `first` and then `rest`.

    Args:
        first: bytes of the first event, already awaited.
        rest: the following events; closed whatever happens.
        failure: the bytes that end a stream which breaks with the given exception.
    """

    def __init__(
        self, first: bytes, rest: Events, failure: Callable[[Exception], bytes], headers: Mapping[str, str]
    ) -> None:
        super().__init__(
            rest,
            headers={**headers, "cache-control": "no-cache"},
            ping=PING_SECONDS,
            ping_message_factory=self._ping_content,  # type: ignore[arg-type]  # bytes are sent as they are
            send_timeout=SEND_SECONDS,
        )
        del self.headers["connection"]  # it belongs to the protocol, which may have to close
        self._first, self._rest, self._failure = first, rest, failure
        self._silent = False  # since the last ping

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
        try:
            await self._run(receive, send)
        except SendTimeoutError:
            # The request is over, and `gateway.http.h11_protocol` closes the connection of a client that still does not
            # read. A client that reads again must not wait for ever: returning makes uvicorn close its connection.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(disconnected(receive), CLOSE_SECONDS)

    async def _run(self, receive: Receive, send: Send) -> None:
        """Write until the stream ends, its client leaves, or a ping is not read: SendTimeoutError."""
        tasks = [
            asyncio.ensure_future(self._stream_response(send)),
            asyncio.ensure_future(self._listen_for_disconnect(receive)),
            asyncio.ensure_future(self._ping(send)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                await stop(task)
            await self._rest.aclose()
        for task in done:
            task.result()

    def _ping_content(self) -> bytes:
        """A comment if the stream was silent since the last ping, else no bytes. Even a ping without bytes waits while
        the client does not read, so pings alone find a client that has stopped reading.
        """
        silent, self._silent = self._silent, True
        return COMMENT if silent else b""

    async def _stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send(_body(self._first))
        count = 1
        try:
            async for event in self._rest:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._silent = False
                count += 1
                if count % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        except Exception as error:
            await send(_body(self._failure(error)))
        async with self._send_lock:  # no comment may follow the end
            self.active = False
            await send(_body(b"", more=False))


def _body(content: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}
