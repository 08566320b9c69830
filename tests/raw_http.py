"""A minimal HTTP client over asyncio, for tests with thousands of requests: a client library would be too slow."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # by lower-case name
    body: bytes


@dataclass(frozen=True)
class Connection:
    """One request that was sent on a connection of its own."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def send(cls, url: str, path: str, body: Any = None) -> "Connection":
        """Send a POST of `body` as JSON, or a GET without a body; the server closes the connection after its answer."""
        host, _, port = url.removeprefix("http://").partition(":")
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"host: {host}", "connection: close"]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(content)}"]
        connection = cls(*await asyncio.open_connection(host, int(port)))
        connection.writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        return connection

    async def answer(self) -> Answer:
        head, _, body = (await self.reader.read()).partition(b"\r\n\r\n")
        self.leave()
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(first.split()[1]), headers, body)

    def leave(self) -> None:
        """Close the connection without reading the rest."""
        self.writer.transport.abort()


async def ask(url: str, path: str, body: Any = None) -> Answer:
    return await (await Connection.send(url, path, body)).answer()
