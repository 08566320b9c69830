"""Measures the gateway with a mock engine: tokens streamed per second of its CPU time, and the latency it adds to each.

CPU time is the gateway's own, from /proc, without that of the client and of the mock engine. On /v1, tokens that come
faster than they can be sent share an event, so both tokens and events are counted. Added latency is the time between
two events of a single stream, less the duration of the engine's step. Tokens per second of wall-clock time show what a
second HTTP process (`--api-workers 2`) is worth, if there are cores for it, the client and the mock engine.
"""

import asyncio
import itertools
import os
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import httpx

from tests.processes import Launcher, running_launcher
from tests.servers import arguments, children
from tests.tiny import tokenizer

COLUMNS = ("gateway, mock engine", "tokens/s per core", "events/s per core", "tokens/s", "added ms/token p50", "p99")
STREAMS, TOKENS = 32, 400
WORKERS = (1, 2)
LONE_TOKENS, STEP_SECONDS = 200, 0.01
TICKS = os.sysconf("SC_CLK_TCK")


def measure(rounds: int) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as directory:
        tokenizer().save_pretrained(directory)
        return asyncio.run(_measure(Path(directory), rounds))


async def _measure(directory: Path, rounds: int) -> list[list[str]]:
    script = ("--script", *map(str, tokenizer().encode("hello", add_special_tokens=False)))  # a character a token
    rows = []
    for (route, body), workers in itertools.product(ROUTES.items(), WORKERS):
        flags = (f"--api-workers={workers}", f"--max-concurrent-requests={STREAMS}")
        with running_launcher(directory, *flags, mock=script) as launcher:
            launcher.wait_for(200)
            rates = [await _saturate(launcher, route, body) for _ in range(rounds)]
        with running_launcher(directory, *flags, mock=("--step-seconds", str(STEP_SECONDS), *script)) as launcher:
            launcher.wait_for(200)
            gaps = [gap for _ in range(rounds) for gap in await _gaps(launcher, route, body)]
        medians = [f"{median(rate):,.0f}" for rate in zip(*rates, strict=True)]
        added = (median(gaps), quantiles(gaps, n=100)[98])
        name = f"{route}, {workers} HTTP process{'es' if workers > 1 else ''}"
        rows.append([name, *medians, *(f"{seconds * 1e3:.2f}" for seconds in added)])
    return rows


async def _saturate(launcher: Launcher, route: str, body: dict[str, object]) -> tuple[float, float, float]:
    """Tokens and events per second of CPU time, and tokens per second, while every stream runs as fast as it can."""
    async with httpx.AsyncClient(base_url=launcher.url, timeout=120) as client:
        processes, began = _gateway(launcher), time.perf_counter()
        before = sum(map(_cpu_seconds, processes))
        events = await asyncio.gather(*(_count(client, route, body, TOKENS) for _ in range(STREAMS)))
        spent = sum(map(_cpu_seconds, processes)) - before
    tokens = STREAMS * TOKENS
    return tokens / spent, sum(events) / spent, tokens / (time.perf_counter() - began)


def _gateway(launcher: Launcher) -> list[int]:
    """The HTTP processes."""
    pid = launcher.process.pid
    return [pid, *(child for child in children(pid) if "gateway.processes.http_worker" in arguments(child))]


async def _count(client: httpx.AsyncClient, route: str, body: dict[str, object], tokens: int) -> int:
    """Events of one stream."""
    async with client.stream("POST", route, json=_with_length(body, tokens)) as response:
        assert response.status_code == 200, await response.aread()
        return sum([chunk.count(b"data: ") async for chunk in response.aiter_raw()])


async def _gaps(launcher: Launcher, route: str, body: dict[str, object]) -> list[float]:
    """Of one lone stream: seconds between events beyond the engine's step."""
    arrivals = []
    async with (
        httpx.AsyncClient(base_url=launcher.url, timeout=120) as client,
        client.stream("POST", route, json=_with_length(body, LONE_TOKENS)) as response,
    ):
        async for _ in response.aiter_raw():
            arrivals.append(time.perf_counter())
    return [max(0.0, b - a - STEP_SECONDS) for a, b in itertools.pairwise(arrivals)]


def _with_length(body: dict[str, object], tokens: int) -> dict[str, object]:
    if "inputs" in body:
        return {**body, "parameters": {"max_new_tokens": tokens}}
    return {**body, "max_tokens": tokens}


def _cpu_seconds(pid: int) -> float:
    """User and system time of one process, all its threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


ROUTES: dict[str, dict[str, object]] = {
    "/generate_stream": {"inputs": "hello"},
    "/v1/completions": {"prompt": "hello", "stream": True, "temperature": 0, "ignore_eos": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "stream": True, "temperature": 0},
}
