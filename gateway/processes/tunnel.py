"""The tunnel of `--ngrok`: a public address, at ngrok's, that is forwarded to the port of this server.

It is opened once the engine is ready, and closed to new connections before the server turns requests away. Whatever
becomes of it, the server goes on serving its own port: a tunnel that fails or is lost is opened again, after longer and
longer pauses.

ngrok's library connects a lost session again by itself, but 0.05, 2.5, 125 and 6,250 s after each other, and nobody is
told. So it is made to give up at once, and the tunnel is opened anew.
"""

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from gateway.config.options import Options
from gateway.http.listener import address_of
from gateway.processes import signals

logger = logging.getLogger("gateway")

OPEN_SECONDS = 30.0  # for ngrok to answer
CLOSE_SECONDS = 2.0  # likewise: the server does not wait longer to stop
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0  # seconds between two attempts; each pause is twice as long as the one before
EDGE = "edghts_"


def ngrok_problem(options: Options) -> str | None:
    """Why `--ngrok` cannot be served on this machine, if it cannot."""
    if not options.ngrok:
        return None
    try:
        from ngrok import SessionBuilder  # noqa: F401 — a directory called ngrok can be imported too, but has none
    except ImportError:
        return "--ngrok needs the package ngrok: pip install '.[ngrok]'"
    return None


class Tunnel:
    """Forwards connections to `target`, an URL of this server.

    Args:
        token: of the ngrok account. It is never logged.
        edge: a domain or an edge of the account; a domain that ngrok chooses if None.
    """

    def __init__(self, target: str, token: str, edge: str | None) -> None:
        self._target, self._token, self._edge = target, token, edge
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False
        self._session: Any = None
        self._listener: Any = None
        self._cause = ""  # of the end of the connection to ngrok

    @classmethod
    def of(cls, options: Options, listener: socket.socket) -> "Tunnel | None":
        """The tunnel to `listener` that the options ask for, if they do."""
        if not options.ngrok or options.ngrok_token is None:
            return None
        return cls(target_url(listener, tls=options.ssl_certfile is not None), options.ngrok_token, options.ngrok_edge)

    def open(self) -> None:
        """Begin to keep the tunnel open, unless that has begun, or `close` has been called."""
        if self._keeping is None and not self._closed:
            self._keeping = asyncio.create_task(self._keep_open())

    async def close(self) -> None:
        """Take no more connections, within `CLOSE_SECONDS`. Those that there are go on until `stop`."""
        self._closed = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
        if self._listener is None:  # its address may be open already, without connections that could be lost
            await self._end_session()
        await self._close_listener()

    async def stop(self) -> None:
        """Close the tunnel with the connections that go through it, within twice `CLOSE_SECONDS`."""
        await self.close()
        await self._end_session()

    async def _keep_open(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                await self._open()
                await self._listener.join()
                reason = "ngrok has closed it"
            except Exception as error:  # the library raises ValueError for whatever goes wrong
                reason = self._reason(error)
            if time.monotonic() - began > LAST_PAUSE:
                pause = FIRST_PAUSE
            state = "cannot open" if self._listener is None else "lost"
            logger.warning("%s the ngrok tunnel: %s; trying again in %g s", state, reason, pause)
            await self._close_listener()
            await self._end_session()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    async def _open(self) -> None:
        async with asyncio.timeout(OPEN_SECONDS):
            self._cause = ""
            self._session = await self._connect()
            self._listener = await self._endpoint().listen_and_forward(self._target)
        url = self._listener.url()  # an edge's is known at ngrok's alone
        logger.info("public address: %s, forwarded to %s", url or f"that of {self._edge}", self._target)

    async def _connect(self) -> Any:
        from ngrok import SessionBuilder

        with signals.kept_from_threads():  # the library starts its threads at the first call
            connecting = SessionBuilder().authtoken(self._token).handle_disconnection(self._give_up).connect()
        return await connecting

    def _give_up(self, address: str, error: str) -> None:
        """What the library calls, in a thread of its own, before it connects again: an exception keeps it from that."""
        self._cause = error
        raise ConnectionError(f"the connection to {address} has ended: {error}")

    def _endpoint(self) -> Any:
        if self._edge is not None and self._edge.startswith(EDGE):
            endpoint = self._session.labeled_listener().label("edge", self._edge)
        else:
            endpoint = self._session.http_endpoint()
            if self._edge is not None:
                endpoint = endpoint.domain(self._edge)
        if self._target.startswith("https:"):
            # The certificate is made out to a name of this machine, not to the address by which it calls itself.
            endpoint = endpoint.verify_upstream_tls(False)
        return endpoint

    async def _close_listener(self) -> None:
        """Also for a listener that is lost: until then the library keeps it, and its session."""
        if (listener := self._listener) is not None:
            self._listener = None
            await _within(CLOSE_SECONDS, listener.close())

    async def _end_session(self) -> None:
        if (session := self._session) is not None:
            self._session = None
            await _within(CLOSE_SECONDS, session.close())

    def _reason(self, error: Exception) -> str:
        """What the library says, without the token, which ngrok quotes on the second line when it refuses one."""
        if isinstance(error, TimeoutError):
            return f"no answer within {OPEN_SECONDS:g} s"
        said = [self._cause] if self._cause else map(str, error.args)
        first_lines = ": ".join(part.partition("\n")[0] for part in said)
        return (first_lines or type(error).__name__).replace(self._token, "…")


async def _within(seconds: float, closing: Awaitable[object]) -> None:
    """Wait for `closing`. That it fails, or takes longer, is no matter: the tunnel goes with the session."""
    with suppress(Exception):
        async with asyncio.timeout(seconds):
            await closing


def target_url(listener: socket.socket, *, tls: bool) -> str:
    """The URL at which this machine reaches a listening socket of its own."""
    address = ipaddress.ip_address(listener.getsockname()[0])
    if not address.is_unspecified and not address.is_loopback:
        return f"{'https' if tls else 'http'}://{address_of(listener)}"
    port = listener.getsockname()[1]
    if address.version == 4:
        host = "127.0.0.1" if address.is_unspecified else str(address)
    else:
        host = "localhost" if tls else "[::1]"  # the library's TLS takes no address in brackets for a name
    return f"{'https' if tls else 'http'}://{host}:{port}"
