"""HTTP/1.1 over one connection: uvicorn's h11 protocol, with bounds on what a client may do to it.

uvicorn waits without limit for a request's head, for the rest of a body that nobody reads any more, and for a client
to go on reading; each has a deadline here. A connection is closed so that a client which is still sending can read why
(RFC 9112, 9.6). A client that closes its sending side after a whole request gets its answer.
"""

import asyncio
import json
import socket
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from gateway.http.connections import Connections

HEAD_SECONDS = 10.0
BODY_SECONDS = 30.0
STALL_SECONDS = 30.0
LINGER_SECONDS = 5.0  # for a client to stop sending and read why it was refused
MAX_HEAD_BYTES = 64 << 10
MAX_CHUNKS = 4096  # of one body: each costs 8 us at least, and 40,000 may come at once
FIRST_LOOK, LAST_LOOK = 0.005, 5.0  # seconds after a client's end of sending, for whether it has left
TCP_CLOSE = 7  # of linux/tcp_states.h: the client has reset the connection


class GuardedProtocol(H11Protocol):
    """One connection. It tells the table `connections` whether it waits for its client or works for it."""

    def __init__(self, *args: Any, connections: Connections, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.conn: _BoundedChunks = _BoundedChunks(h11.SERVER, MAX_HEAD_BYTES)
        self._table = connections
        self._deadline: asyncio.TimerHandle | None = None  # for the client to send what it owes
        self._stall_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._lingers = self._ended = False

    @property
    def _client_owes(self) -> bool:
        """Whether the client has not sent a whole request since the last one was answered."""
        return self._lingers or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _Lingering(transport, self))
        self._table.opened(self)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        if self._lingers or self.conn.their_state is h11.MUST_CLOSE:
            return  # nobody's request any more
        super().data_received(data)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= MAX_HEAD_BYTES:
            self.flow.resume_reading()  # uvicorn pauses at a further request, and would not see the client leave
        self._update_table()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. True keeps the connection open for the answer to a request that came whole."""
        self._ended = True
        if self._client_owes or self.scheme == "https":  # TLS cannot be closed on one side
            return None
        self._ask_whether_it_left()
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_table()
        if self._ended and self._client_owes:  # no further request of it is waiting here
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, a head above its size, or a body in too many chunks. A route that is at work for it
        learns that its client is gone. Where an answer has begun or is out, there is no second one.
        """
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse()
        self.transport.close()

    def _refuse(self) -> None:
        status, words = 400, "this is no HTTP request"
        if self.conn.chunks > MAX_CHUNKS:
            words = f"the request's body comes in more than {MAX_CHUNKS} chunks"
        elif self.conn.our_state is h11.IDLE and len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
            status, words = 431, f"the request's head is longer than {MAX_HEAD_BYTES} bytes"
        body = json.dumps({"error": words, "error_type": "validation"}).encode()
        fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        answer = h11.Response(status_code=status, headers=list(fields.items()), reason=STATUS_PHRASES[status])
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))

    def _should_upgrade(self) -> bool:
        return False  # there is nothing to upgrade to, and uvicorn's advice to install it would fill the log

    def shutdown(self) -> None:
        """The server ends. A client that still owes a body, or time to read why it was refused, is not waited for."""
        if self._lingers or self.conn.their_state is h11.SEND_BODY:
            self.abort()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        _cancel(self._stall_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._stall_timer, self._look_timer, self._deadline):
            _cancel(timer)
        self._table.closed(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close at once, whatever is still to be written."""
        self.transport.abort()

    def linger(self, transport: asyncio.Transport) -> None:
        """Close `transport` behind what was written, once the client has stopped sending or had time to.

        With data unread the kernel would reset the connection, and the client lose what was written.
        """
        sending = self.conn.their_state in (h11.SEND_BODY, h11.ERROR) and not self._ended
        if self._lingers or transport.is_closing() or not sending:
            transport.close()
            return
        self._lingers = True
        self.flow.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        _cancel(self._deadline)
        self._deadline = self.loop.call_later(LINGER_SECONDS, transport.abort)
        self._table.waits(self)

    @property
    def lingers(self) -> bool:
        return self._lingers

    def _update_table(self) -> None:
        """Whose turn it is may have changed."""
        if self._client_owes:
            self._table.waits(self)
        else:
            self._table.works(self)
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Run the clock while the client owes something that nobody else times: a head, unless uvicorn's own clock runs
        for it after an answer, or the rest of a body whose answer is already out.
        """
        if self._lingers:
            return
        answered = self.cycle is None or self.cycle.response_complete
        seconds = {h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: BODY_SECONDS}.get(self.conn.their_state)
        if seconds is None or not answered or self.timeout_keep_alive_task is not None:
            _cancel(self._deadline)
            self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _ask_whether_it_left(self) -> None:
        """Find out whether the client reads on or has closed altogether, which looks the same from here until
        something is sent: its system answers that with a reset. An interim response may be sent to a client of
        HTTP/1.1 at any time before its answer, and says nothing; during the answer its own bytes do it. One of HTTP/1.0
        knows no interim responses: it has left if its answer has not begun by the last look. Older nginx speaks
        HTTP/1.0 by default, and closes when its own client leaves.
        """
        if self.conn.our_state is h11.SEND_RESPONSE and self.conn.their_http_version == b"1.1":
            interim = self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            self.transport.write(interim)
        self._look(FIRST_LOOK)

    def _look(self, seconds: float) -> None:
        """Look for that reset, again after `seconds`, and then ever later."""
        if self.transport.is_closing():
            return
        channel: socket.socket = self.transport.get_extra_info("socket")
        reset = channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
        unasked = self.conn.our_state is h11.SEND_RESPONSE and self.conn.their_http_version != b"1.1"
        if reset or (unasked and seconds > LAST_LOOK):
            self.abort()
        elif seconds <= LAST_LOOK:
            self._look_timer = self.loop.call_later(seconds, self._look, 2 * seconds)


class _BoundedChunks(h11.Connection):
    """h11's side of a connection, where a body in more than `MAX_CHUNKS` chunks is a protocol error."""

    chunks = 0  # of the last body, so far

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            if self.chunks > MAX_CHUNKS:
                raise h11.RemoteProtocolError("too many chunks")
        return event


class _Lingering:
    """A transport whose `close` is the protocol's `linger`: uvicorn closes in a dozen places."""

    def __init__(self, transport: asyncio.Transport, protocol: GuardedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self.write = transport.write  # called for every event of a stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._protocol.linger(self._transport)

    def is_closing(self) -> bool:
        return self._protocol.lingers or self._transport.is_closing()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
