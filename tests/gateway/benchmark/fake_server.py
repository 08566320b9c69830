"""A server that answers each request as it is told to: late, in parts, with an error, or not at all.

It speaks just enough HTTP/1.1 for one client, over raw sockets, because a real server would not misbehave so.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

MODELS = {"data": [{"id": "fake"}]}


@dataclass(frozen=True)
class Script:
    """How one request is answered.

    wait: seconds before the head of the answer.
    events: after each so many seconds the data of an event.
    body: instead of events.
    cut: whether the connection is closed in the middle of the answer.
    """

    status: int = 200
    wait: float = 0.0
    events: Sequence[tuple[float, str]] = ()
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


def text(content: str, finish: str | None = None) -> str:
    """An event of /v1/completions."""
    return json.dumps({"choices": [{"index": 0, "text": content, "finish_reason": finish}]})


def usage(prompt: int, completion: int) -> str:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def stream(tokens: int, *, wait: float = 0.0, gap: float = 0.0) -> Script:
    """A whole answer, the first of whose tokens comes after `wait` seconds and the others every `gap`."""
    texts = [text("a", "length" if number == tokens - 1 else None) for number in range(tokens)]
    events = [(gap if number else wait, each) for number, each in enumerate(texts)]
    return Script(events=[*events, (0.0, usage(3, tokens)), (0.0, "[DONE]")])


Answers = Callable[[int, dict[str, Any]], Script]  # by the number of the request, from 0 on, and its body


class FakeServer:
    """Args:
    answers: how POSTs are answered.
    documents: what GETs of other paths than these are answered: 404.
    """

    def __init__(self, answers: Answers, documents: Mapping[str, Any] | None = None) -> None:
        self._answers = answers
        self._documents = {"/v1/models": MODELS} if documents is None else documents
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.heads: list[str] = []
        self.arrivals: list[float] = []  # seconds of `perf_counter`
        self.connections = 0
        self.active = 0  # requests that are being answered
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["FakeServer"]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.die()

    def die(self) -> None:
        """Close the port and every connection."""
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        method, path, _ = head.split(" ", 2)
        length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:"))
        body = await reader.readexactly(length)
        if method == "GET":
            found = self._documents.get(path)
            script = Script(status=404, body="none") if found is None else Script(body=found)
        else:
            self.arrivals.append(perf_counter())
            self.paths.append(path)
            self.bodies.append(json.loads(body))
            script = self._answers(len(self.bodies) - 1, self.bodies[-1])
        self.active += 1
        try:
            return await _write(writer, script)
        finally:
            self.active -= 1


async def _write(writer: asyncio.StreamWriter, script: Script) -> bool:
    """Whether the connection can be used again."""
    await asyncio.sleep(script.wait)
    if script.body is not None:
        content = script.body if isinstance(script.body, str) else json.dumps(script.body)
        headers = {"content-type": "application/json", "content-length": str(len(content.encode())), **script.headers}
        writer.write(_head(script.status, headers) + content.encode())
        await writer.drain()
        return True
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **script.headers}
    writer.write(_head(script.status, headers))
    for gap, data in script.events:
        await asyncio.sleep(gap)
        writer.write(_chunk(f"data: {data}\n\n".encode()))
        await writer.drain()
    if script.cut:
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} .", *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
