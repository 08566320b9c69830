"""Streams of every kind while replicas are killed and stopped: `disturb`. By hand, over a tiny model:

python -m tests.server.chaos MODEL_DIRECTORY [KILLS [STOPS]]
"""

import asyncio
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.processes import NO_CERTIFICATES, PATIENCE
from tests.server.streams import Outcome, stream
from tests.servers import READY_SECONDS, Server, serving

PROMPTS = [
    "The river", "quick brown", "def add(", "user: where", "over the lazy", "assistant:", "rivers do", "return a",
]  # fmt: skip
SEEDED = {"do_sample": True, "temperature": 1.0, "top_k": 40, "repetition_penalty": 1.1, "frequency_penalty": 0.2}
# 16: each prompt greedily and by a seed; 1 to 2 ms a step.
ASKED: list[tuple[str, int, dict[str, Any]]] = [
    (prompt, 60 + 60 * place, parameters)
    for place, prompt in enumerate(PROMPTS)
    for parameters in ({}, {**SEEDED, "seed": place})
]
HANG_SECONDS = 3.0
OPTIONS = ("--replicas=2", "--admin-port=0", "--max-engine-restarts=1000", f"--engine-hang-timeout={HANG_SECONDS:g}")


@dataclass
class Report:
    """What became of the streams.

    pauses: the longest time between two events, in seconds, of each stream during which an engine was killed.
    stalls: likewise where one was stopped.
    """

    streams: int = 0
    pauses: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)


class Lanes:
    """Streams that follow one another, each compared with the same one before anything was disturbed."""

    def __init__(self, server: Server, whole: list[Outcome]) -> None:
        self._server, self._whole = server, whole
        self.report = Report()
        self.killed: list[float] = []  # moments of the monotonic clock
        self.stopped: list[float] = []
        self.ending = False

    async def run(self, place: int) -> None:
        while not self.ending:
            moments = [time.monotonic()]
            inputs, length, parameters = ASKED[place]
            outcome = await stream(self._server.url, inputs, length, moments=moments, **parameters)
            assert outcome == self._whole[place], f"{ASKED[place]}: {outcome}, not {self._whole[place]}"
            self.report.streams += 1
            longest = max(later - earlier for earlier, later in itertools.pairwise(moments))
            for events, pauses in ((self.killed, self.report.pauses), (self.stopped, self.report.stalls)):
                if any(moments[0] <= moment <= moments[-1] for moment in events):
                    pauses.append(longest)


async def disturb(server: Server, kills: int, stops: int, seed: int = 0) -> Report:
    """Kill and stop replicas, one at a time, under 16 streams. Fails if one is not exact and complete."""
    chance = random.Random(seed)
    await both_ready(server)
    whole = [await stream(server.url, inputs, length, **parameters) for inputs, length, parameters in ASKED]
    assert all(outcome.error is None for outcome in whole)
    lanes = Lanes(server, whole)
    running = [asyncio.create_task(lanes.run(place)) for place in range(len(ASKED))]
    events = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    chance.shuffle(events)
    for event in events:
        await both_ready(server)
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        victim = server.engine_pid(chance.randrange(2))
        (lanes.killed if event is signal.SIGKILL else lanes.stopped).append(time.monotonic())
        os.kill(victim, event)
        await lost(server)
        for lane in running:
            assert not lane.done(), lane.exception()
    lanes.ending = True
    await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    return lanes.report


async def states(http: httpx.AsyncClient, server: Server) -> list[str]:
    answer = await http.get(server.admin_url + "/admin/replicas")
    return [each["state"] for each in answer.json()["replicas"]]


async def both_ready(server: Server) -> None:
    await until_states(server, lambda found: found == ["ready", "ready"])


async def lost(server: Server) -> None:
    await until_states(server, lambda found: "lost" in found)


async def until_states(server: Server, wanted: Any) -> None:
    deadline = time.monotonic() + READY_SECONDS
    async with httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http:
        while not wanted(await states(http, server)):
            assert time.monotonic() < deadline and server.process.poll() is None, server.log.read_text()
            await asyncio.sleep(0.05)


def centile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100)[share - 1] if len(values) > 1 else max(values, default=0.0)


def main(model: str, kills: int, stops: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        flags = (f"--model-id={model}", "--max-batch-size=16", "--max-batch-prefill-tokens=64", *OPTIONS)
        with serving(Path(directory), *flags) as server:
            report = asyncio.run(disturb(server, kills, stops))
            moves = {name: value for name, value in server.gauges().items() if "request_moves" in name}
    print(f"{report.streams} streams, all exact and complete; {moves}")
    for name, pauses in (("killed", report.pauses), ("stopped", report.stalls)):
        print(f"{name}: {len(pauses)} streams, pause p50 {centile(pauses, 50):.2f} s, p99 {centile(pauses, 99):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *(int(each) for each in [*sys.argv[2:], "50", "10"][:2])))
