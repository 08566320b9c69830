"""A server on 127.0.0.1 that answers as its path says: well, wrongly, slowly, without end. It counts who came."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.gateway.images.hostile_pictures import noise, saved

PICTURE = saved(noise(40, 30), "PNG")
Write = Callable[[bytes], Coroutine[Any, Any, None]]
Behaviour = Callable[[Write], Coroutine[Any, Any, None]]


@dataclass
class HostileServer:
    """heads: of all requests, first lines and headers, in lower case."""

    port: int = 0
    heads: list[str] = field(default_factory=list)

    @property
    def hits(self) -> int:
        return len(self.heads)


@asynccontextmanager
async def hostile_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[HostileServer]:
    found = HostileServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            found.heads.append(head.lower())
            await _answer(head.split()[1], writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


async def _answer(target: str, writer: asyncio.StreamWriter) -> None:
    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    path, _, query = target.partition("?")
    if path == "/redirect":  # ?STATUS,LOCATION
        status, _, location = unquote(query).partition(",")
        await write(f"HTTP/1.1 {status} Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
    else:
        await BEHAVIOURS.get(path, _not_found)(write)


def answer(*headers: str, body: bytes = PICTURE, status: int = 200) -> Behaviour:
    async def behave(write: Write) -> None:
        lines = "".join(f"{header}\r\n" for header in headers)
        await write(f"HTTP/1.1 {status} OK\r\n{lines}\r\n".encode() + body)

    return behave


def endless(start: bytes, part: bytes, pause: float = 0.0) -> Behaviour:
    async def behave(write: Write) -> None:
        await write(start)
        while True:
            await write(part)
            await asyncio.sleep(pause)

    return behave


def _chunks(size: int) -> bytes:
    parts = [PICTURE[start : start + size] for start in range(0, len(PICTURE), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


_not_found = answer("Content-Length: 0", status=404)
_LENGTH = f"Content-Length: {len(PICTURE)}"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"
WELL = {
    "/picture": answer("Content-Type: image/png", _LENGTH),
    "/with-accents-%C3%A9": answer("Content-Type: image/png", _LENGTH),
    "/bare": answer(_LENGTH),
    "/octets": answer("Content-Type: application/octet-stream", _LENGTH),
    "/until-closed": answer("Content-Type: image/png", "Connection: close"),
    "/chunked": answer("Content-Type: image/png", "Transfer-Encoding: chunked", body=_chunks(700)),
    "/more-than-its-length": answer("Content-Type: image/png", _LENGTH, body=PICTURE + b"more"),
    "/after-interim": answer(status=103, body=f"HTTP/1.1 200 OK\r\n{_LENGTH}\r\n\r\n".encode() + PICTURE),
}
BADLY = {
    "/server-error": answer("Content-Length: 0", status=500),
    "/partial": answer(_LENGTH, status=206),
    "/page": answer("Content-Type: text/html", _LENGTH),
    "/json": answer("Content-Type: application/json", "Content-Length: 2", body=b"{}"),
    "/gzip": answer("Content-Type: image/png", "Content-Encoding: gzip", _LENGTH),
    "/zstd": answer("Content-Type: image/png", "Content-Encoding: zstd", _LENGTH),
    "/gzip-transfer": answer("Transfer-Encoding: gzip, chunked", body=_chunks(700)),
    "/length-too-large": answer("Content-Type: image/png", "Content-Length: 99999999999"),
    "/length-unmet": answer("Content-Type: image/png", "Content-Length: 50000"),
    "/length-negative": answer("Content-Length: -1"),
    "/two-lengths": answer("Content-Length: 1", "Content-Length: 2"),
    "/chunk-size-huge": answer("Transfer-Encoding: chunked", body=b"fffffffffffffffffffff\r\n" + PICTURE),
    "/chunk-cut": answer("Transfer-Encoding: chunked", body=_chunks(700)[:-9]),
    "/garbage": answer("\0\1\2", body=b""),
    "/nothing": answer("Content-Length: 0", status=204, body=b""),
    "/endless-body": endless(_HEAD + b"\r\n", bytes(1 << 16)),
    "/endless-chunks": endless(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000),
    "/endless-trailers": endless(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n" * 100),
    "/endless-head": endless(_HEAD, b"X-More: " + b"x" * 1000 + b"\r\n"),
    "/endless-line": endless(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 4096),
    "/endless-interim": endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100),
    "/drip": endless(_HEAD + b"Content-Length: 1000\r\n\r\n", b"x", 0.2),
    "/drip-head": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.2),
    "/silence": endless(b"", b"", 0.2),
}
BEHAVIOURS = {**WELL, **BADLY}
