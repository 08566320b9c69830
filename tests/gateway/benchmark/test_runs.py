"""Runs against a fake server: when their prompts are made, and what is kept of those that were cut short."""

import asyncio
import io
import threading
from collections.abc import Iterator
from time import perf_counter, sleep

import pytest

from gateway.benchmark import facts, server_benchmark
from gateway.benchmark.command_line import parse
from gateway.benchmark.live import Lines
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.report import INTERRUPTED, Report
from tests.gateway.benchmark.fake_server import FakeServer, Script, stream

SLOW = 0.02  # seconds


async def measured(server: FakeServer, *options: str, stream: io.StringIO | None = None) -> Report:
    shown = Lines(1, stream or io.StringIO())
    return await server_benchmark.measure(parse([f"--url={server.url}", *options], {}), shown)


@pytest.mark.parametrize(
    "load", [["-b=2", "--requests=10"], ["--rate=1000", "--requests=10"], ["-b=2", "--duration=0.3"]]
)
async def test_prompts_are_made_in_a_thread_before_the_clock_starts(
    load: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    threads: set[int] = set()

    def slowly(*_: object) -> Iterator[Prompt]:
        while True:
            threads.add(threading.get_ident())
            sleep(SLOW)
            made.append(perf_counter())
            yield Prompt("hello", tokens=2)
            if len(made) == 1:
                threads.clear()  # the first tells which kind they are

    monkeypatch.setattr(server_benchmark, "prompts", slowly)
    async with FakeServer(lambda number, body: stream(2)).running() as server:
        await measured(server, *load, "-r=1", "-w=0", "-d=2")
    assert threading.get_ident() not in threads
    if "--requests=10" in load:
        assert made[10] < server.arrivals[1], "behind the one that finds out about ignore_eos"


async def test_runs_that_had_ended_are_kept_when_a_load_is_interrupted() -> None:
    shown = io.StringIO()
    async with FakeServer(lambda number, body: stream(2, wait=60.0 if number > 2 * 4 else 0.0)).running() as server:
        running = asyncio.create_task(measured(server, "-b=2", "--requests=4", "-r=5", "-w=0", "-d=2", stream=shown))
        while "run 2 of" not in shown.getvalue():
            await asyncio.sleep(0.01)
        running.cancel()
        report = await running
    assert report.failure == INTERRUPTED
    assert len(report.levels[0].runs) == 2 and report.levels[0].totals["complete"] == 8


async def test_an_interrupted_measurement_does_not_wait_for_a_server_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An impatient second Ctrl-C would lose what was measured."""
    shown, asked = io.StringIO(), []

    async def counters(client: object) -> dict[str, float]:
        asked.append(client)
        await asyncio.sleep(0 if len(asked) == 1 else 3600)
        return {"preemptions": 0.0}

    monkeypatch.setattr(facts, "counters", counters)
    monkeypatch.setattr(server_benchmark, "LAST_SECONDS", 0.01)
    async with FakeServer(lambda number, body: stream(2)).running() as server:
        running = asyncio.create_task(measured(server, "-b=1", "--requests=1", "-r=9999", "-w=0", stream=shown))
        while "run 1 of" not in shown.getvalue():
            await asyncio.sleep(0.01)
        running.cancel()
        report = await running
    assert report.failure == INTERRUPTED and len(asked) == 2 and report.levels
    assert report.facts["metrics"] == {"before": {"preemptions": 0.0}, "after": {}, "grown": {}}


async def test_a_server_that_goes_away_in_the_warm_up_was_not_measured() -> None:
    def dying(number: int, body: object) -> Script:
        if number == 3:
            asyncio.get_running_loop().call_soon(server.die)
        return stream(2)

    server = FakeServer(dying)
    async with server.running():
        report = await measured(server, "-b=2", "--requests=100", "-r=2", "-w=1", "-d=2")
    assert "went away: Connection refused" in report.failure and report.levels == []
