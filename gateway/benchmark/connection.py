"""One HTTP/1.1 connection of the client. What arrives is timed and handed on within the socket's callback.

Streams of asyncio would wake a task for every chunk, which costs more than reading the chunk, and would time it when
the task runs, not when the chunk came.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast

import h11

from gateway.benchmark.one_line import one_line

OnData = Callable[[float, bytes], None]  # the moment, in seconds of `perf_counter`, and a part of an event stream
EVENT_STREAM = "text/event-stream"


class ConnectionLost(Exception):
    """The server closed the connection, or broke the protocol. `begun`: after a part of its answer."""

    def __init__(self, reason: str, *, begun: bool) -> None:
        super().__init__(reason)
        self.begun = begun


@dataclass(slots=True)
class Reply:
    """body: of an answer that is no event stream, as it came.
    received: when its last part came.
    """

    status: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    received: float = 0.0

    @property
    def streams(self) -> bool:
        return self.status == 200 and self.headers.get("content-type", "").startswith(EVENT_STREAM)


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._reply: Reply | None = None
        self._on_data: OnData | None = None

    @property
    def reusable(self) -> bool:
        usable = self._transport is not None and not self._transport.is_closing()
        return usable and self._http.states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}

    async def exchange(self, request: h11.Request, body: bytes, on_data: OnData | None) -> Reply:
        """Send a request, and wait for the end of its answer. The parts of an event stream go to `on_data`.

        Raises:
            ConnectionLost: before the answer was whole.
        """
        assert self._transport is not None, "not connected"
        self._done, self._reply, self._on_data = asyncio.get_running_loop().create_future(), None, on_data
        http = self._http
        try:
            self._transport.write(
                http.send(request) + (http.send(h11.Data(body)) or b"") + http.send(h11.EndOfMessage())
            )
            return await self._done
        finally:
            self._done = None
            if http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                http.start_next_cycle()
            else:
                self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without the name

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        try:
            self._http.receive_data(data)
            self._read(now)
        except h11.RemoteProtocolError as error:
            self._lose(f"no HTTP: {error}")

    def _read(self, now: float) -> None:
        while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Data):
                self._take(now, bytes(event.data))
            elif isinstance(event, h11.Response):
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                self._reply = Reply(event.status_code, headers)
            elif isinstance(event, h11.EndOfMessage):
                self._end(now)
            elif isinstance(event, h11.ConnectionClosed):
                self._lose("the server closed the connection")
                break

    def _take(self, now: float, data: bytes) -> None:
        assert self._reply is not None
        if self._on_data is not None and self._reply.streams:
            self._on_data(now, data)
        else:
            self._reply.body += data

    def _end(self, now: float) -> None:
        assert self._reply is not None
        self._reply.received = now
        if self._done is not None and not self._done.done():
            self._done.set_result(self._reply)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            try:
                self._http.receive_data(b"")  # the end of an answer without a length
                self._read(perf_counter())
            except h11.RemoteProtocolError:
                pass
        self._lose(str(error or "the server closed the connection"))

    def _lose(self, reason: str) -> None:
        self.close()
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionLost(one_line(reason), begun=self._reply is not None))
