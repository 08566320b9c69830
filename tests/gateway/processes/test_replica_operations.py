"""What an operator begins with replicas, and what becomes of it when something else is begun or an engine fails."""

import asyncio
from collections.abc import Collection
from typing import cast

import pytest

from gateway.engine.interface import ReplicaStatus
from gateway.engine.replica import Turn
from gateway.processes import replica_operations
from gateway.processes.engines import Engines
from gateway.processes.replica_operations import ReplicaOperations
from gateway.processes.supervisor import State
from gateway.request.shared_counters import SharedCounters
from tests.processes import until


class FakeEngine:
    """An engine whose next start ends when `come_up` is called."""

    def __init__(self, *, fails: bool) -> None:
        self.state, self.restarts, self._fails = State.READY, 0, fails

    async def restart(self, timeout: float) -> None:
        self.state = State.STARTING
        self.restarts += 1

    def come_up(self) -> None:
        if self.state is State.STARTING:
            self.state = State.FAILED if self._fails else State.READY


class World:
    """Replicas without requests. Their engines, those of these numbers excepted, come back after every restart."""

    def __init__(self, count: int, broken: Collection[int] = ()) -> None:
        self.engines = [FakeEngine(fails=number in broken) for number in range(count)]
        self.counters = SharedCounters(replicas=count)
        engines = cast(Engines, self.engines)
        self.operations = ReplicaOperations(engines, self.counters, 1.0, self._statuses)

    def _statuses(self) -> list[ReplicaStatus]:
        return [ReplicaStatus(number, self._state(number), "", 0, 0, 0.0) for number in range(len(self.engines))]  # type: ignore[arg-type]

    def _state(self, number: int) -> str:
        if self.engines[number].state is not State.READY:
            return "lost"
        return "ready" if self.counters.turn(number) is Turn.OPEN else "draining"

    async def restarted(self, number: int, times: int = 1) -> None:
        """Wait until an engine is being restarted for so many times."""
        await until(lambda: self.engines[number].restarts == times)

    async def opened(self, number: int) -> None:
        await until(lambda: self._state(number) == "ready")


async def test_a_replica_that_is_restarted_twice_is_open_in_the_end() -> None:
    world = World(2)
    world.operations.restart(0)
    await world.restarted(0)
    world.operations.restart(0)
    await world.restarted(0, 2)
    world.engines[0].come_up()
    await world.opened(0)


async def test_a_restart_leaves_a_drained_replica_closed() -> None:
    world = World(2)
    world.operations.drain(0)
    await until(lambda: world.counters.turn(0) is Turn.CLEARED)
    world.operations.restart(0)
    await world.restarted(0)
    world.engines[0].come_up()
    await asyncio.sleep(0.2)
    assert world.counters.turn(0) is Turn.CLEARED
    world.operations.undrain(0)
    world.operations.restart(0)
    await world.restarted(0, 2)
    world.engines[0].come_up()
    await world.opened(0)


async def test_restarting_all_goes_on_when_one_of_them_is_restarted_by_hand() -> None:
    world = World(2)
    world.operations.restart_all()
    await world.restarted(0)
    world.operations.restart(0)
    await world.restarted(0, 2)
    await asyncio.sleep(0.1)
    assert world.engines[1].restarts == 0 and world.operations.restarting
    for number in range(2):
        await world.restarted(number, 2 - number)
        world.engines[number].come_up()
    await until(lambda: not world.operations.restarting)
    assert [world.counters.turn(number) for number in range(2)] == [Turn.OPEN, Turn.OPEN]


async def test_the_next_is_restarted_once_every_process_reaches_the_one_that_is_back() -> None:
    world = World(2)
    world.operations.restart_all()
    await world.restarted(0)
    world.counters.set_reached(0, False)
    world.engines[0].come_up()
    await world.opened(0)
    await asyncio.sleep(0.3)
    assert world.engines[1].restarts == 0
    world.counters.set_reached(0, True)
    await world.restarted(1)
    world.operations.stop()


async def test_a_process_that_hangs_does_not_hold_up_the_restart_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_operations, "REACH_SECONDS", 0.2)
    world = World(2)
    world.counters.set_reached(1, False)
    world.operations.restart_all()
    await world.restarted(0)
    world.operations.stop()


async def test_restarting_all_ends_with_the_first_that_does_not_come_back(caplog: pytest.LogCaptureFixture) -> None:
    """A model that can no longer be read costs one replica, not all but one."""
    world = World(3, broken=(0, 1, 2))
    world.operations.restart_all()
    await world.restarted(0)
    world.engines[0].come_up()
    await until(lambda: not world.operations.restarting)
    assert [engine.restarts for engine in world.engines] == [1, 0, 0]
    assert "replica 0 does not come back: the others are not restarted" in caplog.text
    world.operations.restart_all()  # the others alone: this one is given up
    await world.restarted(1)
    assert world.engines[0].restarts == 1
    world.operations.stop()


async def test_the_end_of_the_server_opens_what_was_to_be_opened() -> None:
    """Requests that wait for a replica have the grace time to end."""
    world = World(4)
    world.operations.drain(1)
    world.operations.restart(2)
    world.operations.restart_all()
    await world.restarted(0)
    await world.restarted(2)
    await until(lambda: world.counters.turn(1) is Turn.CLEARED)
    world.operations.stop()
    assert [world.counters.turn(number) for number in range(3)] == [Turn.OPEN, Turn.CLEARED, Turn.OPEN]


async def test_what_cannot_be_done_is_refused_with_the_reason() -> None:
    world = World(2)
    world.operations.restart_all()
    with pytest.raises(ValueError, match="being restarted already"):
        world.operations.restart_all()
    world.operations.stop()
    world.operations.drain(1)
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="fewer than two replicas take requests"):
        world.operations.restart_all()
    world.operations.undrain(1)
    world.engines[1].state = State.FAILED
    with pytest.raises(ValueError, match="fewer than two replicas take requests"):
        world.operations.restart_all()
    with pytest.raises(ValueError, match="replica 1 has been given up"):
        world.operations.restart(1)


async def test_the_only_engine_may_be_restarted_as_all() -> None:
    world = World(1)
    world.operations.restart_all()
    await world.restarted(0)
    world.engines[0].come_up()
    await world.opened(0)
