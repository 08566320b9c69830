"""ngrok's client library as the gateway uses it, without ngrok: a "public" port of this machine that is forwarded.

A launcher finds it through PYTHONPATH. It works in the directory that FAKE_NGROK names:

- `calls`: each call with its arguments, a line of JSON each; of `connect` also the signals its threads do not get;
- `failures`: how many further sessions are refused, as ngrok refuses a wrong token;
- `cut`: when this file appears, the connection to ngrok is lost once.

As in the real library (read in its version 1.4): a builder's methods return it; everything goes wrong as ValueError; an
edge has no URL; closing a listener leaves its connections alone, closing the session ends them; a session that is lost
connects again by itself, unless the handler of disconnections raises.
"""

import asyncio
import json
import logging
import os
import re
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

DIRECTORY = Path(os.environ["FAKE_NGROK"])
CALLS, FAILURES, CUT = (DIRECTORY / name for name in ("calls", "failures", "cut"))
CLIENT = b"203.0.113.7"  # who asks, by X-Forwarded-For
WATCH_SECONDS = 0.02


def record(call: str, **arguments: Any) -> None:
    with CALLS.open("a") as calls:
        calls.write(json.dumps([call, arguments]) + "\n")
    logging.getLogger("ngrok").warning("fake ngrok: %s", call)


def _signals_of_a_new_thread() -> list[int]:
    """Those that a thread does not get which begins now, as the library's do."""
    blocked: list[int] = []
    thread = threading.Thread(target=lambda: blocked.extend(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    thread.start()
    thread.join()
    return sorted(blocked)


class SessionBuilder:
    def authtoken(self, authtoken: str) -> "SessionBuilder":
        self._token = authtoken
        return self

    def handle_disconnection(self, handler: Callable[[str, str], None]) -> "SessionBuilder":
        self._handler = handler
        return self

    def connect(self) -> Awaitable["Session"]:
        record("connect", authtoken=self._token, blocked=_signals_of_a_new_thread())
        return self._connected()

    async def _connected(self) -> "Session":
        left = int(FAILURES.read_text()) if FAILURES.exists() else 0
        if left > 0:
            FAILURES.write_text(str(left - 1))
            said = f"The authtoken {self._token} is not one.\nYour authtoken: {self._token}"
            raise ValueError("failed to connect session", said, "ERR_NGROK_105")
        return Session(self._handler)


class Session:
    def __init__(self, handler: Callable[[str, str], None]) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connections: set[asyncio.Task[None]] = set()
        self._watching = asyncio.create_task(self._watch(handler))

    def http_endpoint(self) -> "Endpoint":
        return Endpoint(self, "http")

    def labeled_listener(self) -> "Endpoint":
        return Endpoint(self, "labeled")

    async def close(self) -> None:
        record("close session")
        self._watching.cancel()
        for connection in self.connections:
            connection.cancel()

    async def _watch(self, handler: Callable[[str, str], None]) -> None:
        while not self.lost.done():
            if CUT.exists():
                CUT.unlink()
                try:
                    handler("connect.ngrok-agent.com:443", "transport error")
                except Exception:
                    self.lost.set_exception(ValueError("error on join: connection lost"))
            await asyncio.sleep(WATCH_SECONDS)


class Endpoint:
    def __init__(self, session: Session, proto: str) -> None:
        self._session, self._asked = session, {"proto": proto}

    def domain(self, domain: str) -> "Endpoint":
        return self._set(domain=domain)

    def label(self, label: str, value: str) -> "Endpoint":
        return self._set(**{label: value})

    def verify_upstream_tls(self, verify_upstream_tls: bool) -> "Endpoint":
        return self._set(verify_upstream_tls=verify_upstream_tls)

    def _set(self, **fields: Any) -> "Endpoint":
        self._asked |= fields
        return self

    async def listen_and_forward(self, to_url: str) -> "Listener":
        port = int(to_url.rpartition(":")[2])
        listener = Listener(self._session, port, has_url=self._asked["proto"] == "http")
        record("listen", to_url=to_url, public=await listener.listen(), **self._asked)
        return listener


class Listener:
    def __init__(self, session: Session, port: int, *, has_url: bool) -> None:
        self._session, self._port, self._has_url = session, port, has_url

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._public = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self._public

    def url(self) -> str | None:
        return self._public if self._has_url else None

    async def join(self) -> None:
        await asyncio.shield(self._session.lost)

    async def close(self) -> None:
        record("close listener")
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one request; the fake's clients send one on a connection."""
        task = asyncio.create_task(self._forward(reader, writer))
        self._session.connections.add(task)
        task.add_done_callback(self._session.connections.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._port)
            upstream.write(re.sub(rb"\r\n", b"\r\nX-Forwarded-For: " + CLIENT + b"\r\n", head, count=1))
            sending = asyncio.create_task(_copy(reader, upstream))
            await _copy(answers, writer)
            sending.cancel()
            upstream.close()
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
