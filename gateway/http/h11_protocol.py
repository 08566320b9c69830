"""HTTP/1.1 over one connection: uvicorn's h11 protocol, with limits on what a client can do to it.

uvicorn waits without limit for a request's head, for the rest of a body that nobody reads any more, and for a client to
go on reading; each wait has a deadline here. A connection is closed in such a way that a client which is still sending
can read why (RFC 9112, 9.6). A client that closes its sending side after a whole request gets its answer.
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
LINGER_SECONDS = 5.0  # for a client to stop sending, and to read why it was refused
MAX_HEAD_BYTES = 64 << 10
MAX_CHUNKS = 4096  # of one body: each costs at least 8 us, and 40,000 can arrive at once
FIRST_POLL, LAST_POLL = 0.005, 5.0  # seconds after the client has closed its sending side; whether it has left
TCP_CLOSE = 7  # of linux/tcp_states.h: the client has reset the connection


class GuardedProtocol(H11Protocol):
    """One connection. It keeps `connections` told whether it waits for its client or works."""

    def __init__(self, *args: Any, connections: Connections, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.conn: _BoundedChunks = _BoundedChunks(h11.SERVER, MAX_HEAD_BYTES)
        self._table = connections
        self._deadline: asyncio.TimerHandle | None = None  # for the client to send the rest of a request
        self._stall_timer: asyncio.TimerHandle | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._lingers = self._ended = False

    @property
    def _awaits_client(self) -> bool:
        """Whether the client has not sent a whole request since the last one was answered."""
        return self._lingers or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _Lingering(transport, self))
        self._table.opened(self)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        if self._lingers or self.conn.their_state is h11.MUST_CLOSE:
            return  # these bytes belong to no request
        super().data_received(data)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= MAX_HEAD_BYTES:
            self.flow.resume_reading()  # uvicorn stops reading at a further request, and would not see the client leave
        self._update_table()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client has closed its sending side. True keeps the connection open for the answer to a whole request."""
        self._ended = True
        if self._awaits_client or self.scheme == "https":  # TLS cannot be closed on one side
            return None
        self._find_out_whether_it_left()
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_table()
        if self._ended and self._awaits_client:  # no further request was received
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, a head that is too long, or a body in too many chunks.

        A route that is answering the request learns that its client is gone. If an answer has begun, no other is sent.
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
        return False  # no other protocol is spoken; uvicorn would log advice to install one at every request

    def shutdown(self) -> None:
        """The server stops. It does not wait for the rest of a body, nor for a client to read why it was refused."""
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
        for timer in (self._stall_timer, self._poll_timer, self._deadline):
            _cancel(timer)
        self._table.closed(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close at once, without writing what is still buffered."""
        self.transport.abort()

    def linger(self, transport: asyncio.Transport) -> None:
        """Close `transport` after the buffered data is written and the client has stopped sending, or had time to.

        If data were left unread, the kernel would reset the connection, and the client would lose what was written.
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
        self._table.awaits_client(self)

    @property
    def lingers(self) -> bool:
        return self._lingers

    def _update_table(self) -> None:
        """Tell `connections` whether the client or the server has to act next."""
        if self._awaits_client:
            self._table.awaits_client(self)
        else:
            self._table.works_for_client(self)
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Run the deadline while the client has to send something for which no other timer runs.

        That is a head, unless uvicorn's keep-alive timer runs for it, or the rest of a body that is already answered.
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

    def _find_out_whether_it_left(self) -> None:
        """Find out whether the client still reads, or has closed the connection altogether.

        The two look the same until something is sent, which the system of a client that has left answers with a reset.
        Before the answer begins an interim response is sent, which HTTP/1.1 allows at any time and which means nothing.
        Later the bytes of the answer serve. HTTP/1.0 knows no interim responses: such a client counts as gone if its
        answer has not begun by the last poll. Older nginx speaks HTTP/1.0 by default, and closes when its own client
        leaves.
        """
        if self.conn.our_state is h11.SEND_RESPONSE and self.conn.their_http_version == b"1.1":
            interim = self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            self.transport.write(interim)
        self._poll_for_reset(FIRST_POLL)

    def _poll_for_reset(self, seconds: float) -> None:
        """Look for that reset now, after `seconds`, and then at doubled intervals."""
        if self.transport.is_closing():
            return
        channel: socket.socket = self.transport.get_extra_info("socket")
        reset = channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
        unasked = self.conn.our_state is h11.SEND_RESPONSE and self.conn.their_http_version != b"1.1"
        if reset or (unasked and seconds > LAST_POLL):
            self.abort()
        elif seconds <= LAST_POLL:
            self._poll_timer = self.loop.call_later(seconds, self._poll_for_reset, 2 * seconds)


class _BoundedChunks(h11.Connection):
    """h11's state of a connection, with a body in more than `MAX_CHUNKS` chunks as a protocol error."""

    chunks = 0  # received of the latest body

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
    """A transport whose `close` calls the protocol's `linger`, because uvicorn closes in a dozen places."""

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
