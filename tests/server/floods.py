"""How much of a running stream is left beside a flood of refused bodies, and beside probes. Run by hand:

python -m tests.server.floods [ROUNDS]

It measures the tokens a second of one stream, alone and beside each flood: of the default model, whose engine uses
every core, and of the mock engine, which leaves the cores to the gateway. The flood's clients keep their connections
open and run on the same cores.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.gateway.toys import write_model
from tests.processes import Launcher, running_launcher
from tests.servers import serving

SECONDS = 5.0  # of each measurement
CONNECTIONS = 32
STEP_SECONDS = 0.01  # of the mock engine
REFUSED = {"inputs": "a", "parameters": {"temperature": -1}}
LONG = {"inputs": "hello", "parameters": {"max_new_tokens": 1900}}


def request(path: str, body: object = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: x", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode() + content


FLOODS = {  # requests a second, and the request
    "600 refused bodies a second": (600.0, request("/generate", REFUSED)),
    "64 probes a second": (64.0, request("/health")),
}


class Flood:
    """A `with` block in which requests are sent at `rate` a second; each connection waits for its answers."""

    def __init__(self, port: int, rate: float, content: bytes) -> None:
        self._port, self._rate, self._content = port, rate, content
        self.answered = 0

    async def __aenter__(self) -> "Flood":
        began = time.perf_counter()
        self._senders = [asyncio.create_task(self._send(number, began)) for number in range(CONNECTIONS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    async def _send(self, number: int, began: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                await asyncio.sleep(began + number / self._rate - time.perf_counter())
                number += CONNECTIONS
                writer.write(self._content)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
                await reader.readexactly(int(length))
                self.answered += 1
        finally:
            writer.transport.abort()


async def stream_rate(port: int) -> float:
    """Tokens a second of a stream, from its first token on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("/generate_stream", LONG))
    await reader.readuntil(b"data:")
    began, tokens = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        await reader.readuntil(b"data:")
        tokens += 1
    writer.transport.abort()
    return tokens / (time.perf_counter() - began)


async def measure(name: str, server: Launcher, rounds: int) -> None:
    port = int(server.url.rpartition(":")[2])
    shares: dict[str, list[float]] = {flood: [] for flood in FLOODS}
    answered: dict[str, list[float]] = {flood: [] for flood in FLOODS}
    for _ in range(rounds):
        for flood, (rate, content) in FLOODS.items():
            before = await stream_rate(port)
            async with Flood(port, rate, content) as running:
                beside = await stream_rate(port)
                answered[flood].append(running.answered / SECONDS)
            shares[flood].append(2 * beside / (before + await stream_rate(port)))
    for flood in FLOODS:
        seen = ", ".join(f"{share:.2f}" for share in sorted(shares[flood]))
        print(
            f"{name}, {flood} ({median(answered[flood]):.0f} answered): {median(shares[flood]):.2f} ({seen})",
            flush=True,
        )


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        mock = (f"--step-seconds={STEP_SECONDS}",)
        with running_launcher(write_model(Path(directory)), mock=mock) as server:
            server.wait_for(200)
            asyncio.run(measure("mock engine", server, rounds))
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        server.wait_ready()
        asyncio.run(measure("default model", server, rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
