"""Where a step's wall time goes: waiting for the device, or the host's own work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import jax

from jaxengine.engine.engine import Engine
from jaxengine.step.results import InFlight, Results


@dataclass
class StepTimes:
    """Seconds of each step. `waited`: blocked until its tokens were there. `launched`: in calls that give the device
    work. `starved`: the tokens were there already, so the device may have been without any.
    """

    wall: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    launched: list[float] = field(default_factory=list)
    starved: list[bool] = field(default_factory=list)

    @property
    def host(self) -> list[float]:
        return [wall - waited for wall, waited in zip(self.wall, self.waited, strict=True)]

    @property
    def idle_at_most(self) -> float:
        """Upper bound of the share of time the device had nothing to do: it cannot idle longer than the host worked,
        and in a step that was waited for it did not idle at all.
        """
        idle = sum(host for host, starved in zip(self.host, self.starved, strict=True) if starved)
        return idle / sum(self.wall)


@contextmanager
def watched(engine: Engine) -> Iterator[StepTimes]:
    """Times every `engine.step()` inside that completes a step."""
    state = engine.runner.state
    times, fetch, step, launch = StepTimes(), engine.runner.fetch, engine.step, state.launch
    waits: list[tuple[float, bool]] = []
    launches: list[float] = []

    def watched_launch(*what: Any) -> Any:
        start = time.perf_counter()
        result = launch(*what)
        launches.append(time.perf_counter() - start)
        return result

    def watched_fetch(flight: InFlight) -> Results:
        start, ready = time.perf_counter(), flight.sampled is None or flight.sampled.is_ready()
        jax.block_until_ready(flight.sampled)
        waits.append((time.perf_counter() - start, ready))
        return fetch(flight)

    def watched_step() -> object:
        waits.clear()
        launches.clear()
        start = time.perf_counter()
        result = step()
        if waits:
            times.wall.append(time.perf_counter() - start)
            times.waited.append(sum(wait for wait, _ in waits))
            times.launched.append(sum(launches))
            times.starved.append(any(ready for _, ready in waits))
        return result

    with (
        mock.patch.object(engine.runner, "fetch", watched_fetch),
        mock.patch.object(engine, "step", watched_step),
        mock.patch.object(state, "launch", watched_launch),
    ):
        yield times
