"""Requests to one server over connections that are kept, as many as there are requests at once."""

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import h11

from gateway import __version__
from gateway.benchmark.connection import Connection, ConnectionLost, OnData, Reply

CONNECT_SECONDS = 30.0
GET_SECONDS = 30.0  # of a document, which needs no model


class Unreachable(Exception):
    """There is no connection to the server. The message says why."""


class HttpClient:
    """A client of the server at `url`, whose path is put before every target.

    Args:
        api_key: sent as a bearer token.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "the option's value was checked"
        self.url = url
        self._host, self._prefix = parts.hostname, parts.path
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = [
            ("host", parts.netloc),
            ("user-agent", f"text-generation-benchmark/{__version__}"),
            ("accept", "text/event-stream, application/json, */*"),
            ("content-type", "application/json"),
            *([("authorization", f"Bearer {api_key}")] if api_key else []),
        ]
        self._idle: list[Connection] = []

    async def get(self, target: str) -> Reply:
        """Raises Unreachable, also if there is no answer for `GET_SECONDS`, or ConnectionLost."""
        try:
            async with asyncio.timeout(GET_SECONDS):
                return await self._request("GET", target, b"", None)
        except TimeoutError:
            raise Unreachable(f"no answer to GET {target} within {GET_SECONDS:g} s") from None

    async def post(self, target: str, body: Mapping[str, Any], on_data: OnData | None = None) -> Reply:
        """Send `body` as JSON; an event stream goes to `on_data`, in parts. Raises Unreachable or ConnectionLost."""
        return await self._request("POST", target, json.dumps(body).encode(), on_data)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _request(self, method: str, target: str, body: bytes, on_data: OnData | None) -> Reply:
        headers = [*self._headers, ("content-length", str(len(body)))]
        try:
            request = h11.Request(method=method, target=self._prefix + target, headers=headers)
        except (h11.LocalProtocolError, UnicodeError):  # whose text may hold the key
            raise Unreachable("the request's address or key is none that HTTP can carry") from None
        kept = self._kept()
        if kept is not None:
            try:
                return await self._exchange(kept, request, body, on_data)
            except ConnectionLost as error:
                if error.begun:
                    raise
                # The server may close a connection that waits, at the moment when it is used: that is no failure.
        return await self._exchange(await self._connect(), request, body, on_data)

    async def _exchange(
        self, connection: Connection, request: h11.Request, body: bytes, on_data: OnData | None
    ) -> Reply:
        reply = await connection.exchange(request, body, on_data)
        if connection.reusable:
            self._idle.append(connection)
        return reply

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        name = self._host if self._ssl else None
        making = loop.create_connection(Connection, self._host, self._port, ssl=self._ssl, server_hostname=name)
        try:
            _, connection = await asyncio.wait_for(making, CONNECT_SECONDS)
        except TimeoutError:
            raise Unreachable(f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise Unreachable(_reason(error)) from None
        except UnicodeError:  # a part of its name is empty or too long
            raise Unreachable("the host's name is none that can be looked up") from None
        return connection


def _reason(error: OSError) -> str:
    """In the system's words, whatever event loop reports it; of a name that is not known in the resolver's, of a
    certificate and of TLS in OpenSSL's, whose numbers are not the system's.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason}"
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)
