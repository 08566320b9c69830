"""What an operator may do to the replicas of a running server: drain, open and restart them, one or all.

A replica that drains takes no new requests. After the grace time what still runs there moves to the others, so that no
client notices. All HTTP processes read what is wanted of each replica from the counters that they share.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.engine.interface import ReplicaStatus
from gateway.engine.replica import Turn
from gateway.processes.engines import Engines
from gateway.processes.supervisor import State
from gateway.request.shared_counters import SharedCounters

logger = logging.getLogger("gateway")

LOOK_SECONDS = 0.05  # between looks at what is waited for
REACH_SECONDS = 10.0  # that an HTTP process gets to reach a replica that is back; one that hangs holds up nobody else
STOP_SECONDS = 5.0  # that an engine gets to end by itself, once it has no requests


class ReplicaOperations:
    """`gateway.engine.interface.Operations` of the launcher's process.

    Args:
        grace: seconds that requests on a replica get to finish there.
        statuses: of the replicas, as this process sees them.
    """

    def __init__(
        self,
        engines: Engines,
        counters: SharedCounters,
        grace: float,
        statuses: Callable[[], Sequence[ReplicaStatus]],
    ) -> None:
        self._engines, self._counters = engines, counters
        self._grace, self._statuses = grace, statuses
        self._work: dict[int, asyncio.Task[None]] = {}  # by replica
        self._all: asyncio.Task[None] | None = None
        self._drained: set[int] = set()  # replicas that stay closed until they are opened by a call

    @property
    def restarting(self) -> bool:
        """Whether all replicas are being restarted."""
        return self._all is not None and not self._all.done()

    def drain(self, number: int) -> None:
        """Have a replica take no new requests, and later have none."""
        self._drained.add(number)
        self._begin(number, self._drain(number))

    def undrain(self, number: int) -> None:
        """Have a replica take requests again, whatever was begun with it."""
        self._forget(number)
        self._drained.discard(number)
        self._counters.set_turn(number, Turn.OPEN)
        logger.info("replica %d is open", number)

    def restart(self, number: int) -> None:
        """Drain a replica, start its engine anew, and open it again unless it was drained before. Raises ValueError if
        its engine has been given up.
        """
        if self._engines[number].state is State.FAILED:
            raise ValueError(f"the engine of replica {number} has been given up: restart the server")
        self._begin(number, self._restart(number))

    def restart_all(self) -> None:
        """Restart the replicas one after another, each once another one takes requests. Raises ValueError if that is
        being done already, or no other one will.
        """
        if self.restarting:
            raise ValueError("the replicas are being restarted already")
        usable = {number for number in range(len(self._engines)) if self._may_serve(number)}
        if len(self._engines) > 1 and len(usable) < 2:
            raise ValueError("fewer than two replicas take requests: restart them one by one")
        self._all = asyncio.create_task(self._restart_all())

    def stop(self) -> None:
        """Leave off whatever was begun: the server ends. Requests may wait for a replica that was to be opened again:
        it is open, and serves them if its engine comes back within the grace time.
        """
        if self._all is not None:
            self._all.cancel()
        for number in list(self._work):
            self._forget(number)
            self._reopen(number)

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        self._forget(number)
        self._work[number] = asyncio.create_task(work)

    def _forget(self, number: int) -> None:
        if task := self._work.pop(number, None):
            task.cancel()

    def _reopen(self, number: int) -> None:
        if number not in self._drained:
            self._counters.set_turn(number, Turn.OPEN)

    async def _drain(self, number: int) -> None:
        logger.info("replica %d drains", number)
        self._counters.set_turn(number, Turn.CLOSED)
        try:
            async with asyncio.timeout(self._grace):
                await self._until(lambda: self._is_idle(number))
        except TimeoutError:
            logger.warning("replica %d has requests after %g s: they move", number, self._grace)
        self._counters.set_turn(number, Turn.CLEARED)
        await self._until(lambda: self._is_idle(number))
        logger.info("replica %d is drained", number)

    async def _restart(self, number: int) -> None:
        await self._drain(number)
        engine = self._engines[number]
        await engine.restart(STOP_SECONDS)
        await self._until(lambda: engine.state in (State.READY, State.FAILED))
        self._reopen(number)
        logger.info("replica %d is %s after its restart", number, engine.state.value)

    async def _restart_all(self) -> None:
        for number in range(len(self._engines)):
            if self._engines[number].state is State.FAILED:  # it was given up before
                continue
            await self._until(partial(self._others_serve, number))
            with suppress(TimeoutError):
                async with asyncio.timeout(REACH_SECONDS):
                    await self._until(partial(self._others_serve, number, reached_by_all=True))
            self.restart(number)
            while (work := self._work.get(number)) and not work.done():  # another call may have begun anew
                await asyncio.wait((work,))
            if self._engines[number].state is State.FAILED:
                logger.error("replica %d does not come back: the others are not restarted", number)
                return
        logger.info("all replicas have been restarted")

    def _others_serve(self, number: int, *, reached_by_all: bool = False) -> bool:
        """Whether a replica besides `number` takes requests, or there is none besides it. `reached_by_all`: whether one
        does that every HTTP process is connected to, so that no new request meets a process without any.
        """
        others = [each for each in self._statuses() if each.index != number]
        ready = [each.index for each in others if each.state == "ready"]
        return not others or any(self._counters.reached(each) or not reached_by_all for each in ready)

    def _may_serve(self, number: int) -> bool:
        """Whether a replica takes requests, or will once its engine is ready."""
        return number not in self._drained and self._engines[number].state is not State.FAILED

    def _is_idle(self, number: int) -> bool:
        """Whether a replica has no requests, of whatever process, or is not there."""
        status = self._statuses()[number]
        return status.state in ("starting", "lost") or not status.running + status.waiting

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(LOOK_SECONDS)
