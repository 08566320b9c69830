"""Keeps one engine process running: start, watch, restart with backoff, give up when that does not help.

Its state is a value and its rules are a table, `TRANSITIONS`. A start that fails for a reason a restart cannot mend (a
wrong option, a broken checkpoint, no permission) is not repeated: the engine's exit code becomes the server's. The
engine inherits stderr, so its one line of explanation is already where the operator looks.
"""

import asyncio
import contextlib
import enum
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal

from jaxengine.rpc.logs import USAGE

logger = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
MAX_DEATHS, DEATH_WINDOW = 5, 600.0
HEALTHY_SECONDS = 60.0  # ready for so long, an engine's death starts the backoff anew
STACK_DUMP_SECONDS = 5.0  # between SIGABRT, which makes a stuck engine write its stacks, and SIGKILL
# Of an engine that the next start would end likewise; a hub that cannot be reached is EX_UNAVAILABLE.
FINAL_CODES = (USAGE, os.EX_DATAERR, os.EX_UNAVAILABLE, os.EX_CANTCREAT, os.EX_IOERR, os.EX_NOPERM)


class State(enum.Enum):
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"
    STOPPED = "stopped"
    FAILED = "failed"


class Signal(enum.Enum):
    """What can happen to an engine, as the supervisor sees it."""

    COMPILING = enum.auto()
    BECAME_READY = enum.auto()
    EXITED = enum.auto()
    RESTART = enum.auto()
    GIVE_UP = enum.auto()
    STOP = enum.auto()


TRANSITIONS: Mapping[tuple[State, Signal], State] = {
    (State.STARTING, Signal.COMPILING): State.WARMING,
    (State.STARTING, Signal.BECAME_READY): State.READY,
    (State.WARMING, Signal.BECAME_READY): State.READY,
    (State.STARTING, Signal.EXITED): State.DEAD,
    (State.WARMING, Signal.EXITED): State.DEAD,
    (State.READY, Signal.EXITED): State.DEAD,
    (State.DRAINING, Signal.EXITED): State.STOPPED,
    (State.DEAD, Signal.RESTART): State.STARTING,
    (State.DEAD, Signal.GIVE_UP): State.FAILED,
    (State.STARTING, Signal.STOP): State.DRAINING,
    (State.WARMING, Signal.STOP): State.DRAINING,
    (State.READY, Signal.STOP): State.DRAINING,
    (State.DEAD, Signal.STOP): State.STOPPED,
}


class RestartBudget:
    """When to start again: ever later after each death, and not at all after too many in a while."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()
        self._step = 0

    def next_delay(self, now: float, lived: float) -> float | None:
        """Seconds to wait after a death at `now` of an engine that was ready for `lived`; None to give up."""
        while self._deaths and now - self._deaths[0] > DEATH_WINDOW:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > MAX_DEATHS:
            return None
        if lived >= HEALTHY_SECONDS:
            self._step = 0
        delay = BACKOFF_SECONDS[min(self._step, len(BACKOFF_SECONDS) - 1)]
        self._step += 1
        return delay


class Supervisor:
    """One engine process, over its lives.

    Args:
        command: how to start it.
        environment: all it may see of ours.
        startup_timeout: seconds it may take to become ready.
        on_state: told of every change of state.
        on_restart: told "died" or "hung" before each restart.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        startup_timeout: float = 1800.0,
        on_state: Callable[[State], None] = lambda _: None,
        on_restart: Callable[[Literal["died", "hung"]], None] = lambda _: None,
    ) -> None:
        self._command, self._environment = tuple(command), dict(environment)
        self._startup_timeout = startup_timeout
        self._on_state, self._on_restart = on_state, on_restart
        self._budget = RestartBudget()
        self._process: asyncio.subprocess.Process | None = None
        self._ready_since: float | None = None
        self._ever_ready = False
        self._hung = False
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.state = State.STARTING

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def run(self) -> int:
        """Keep the engine running until `stop`. Returns the exit code the server should end with."""
        while True:
            code = await self._live()
            if self._stopping.is_set():
                return 0
            if code in FINAL_CODES and not self._ever_ready:
                self._move(Signal.GIVE_UP)
                return code
            delay = self._budget.next_delay(time.monotonic(), self._lived())
            if delay is None:
                logger.error("the engine died more than %d times in %g s: giving up", MAX_DEATHS, DEATH_WINDOW)
                self._move(Signal.GIVE_UP)
                return os.EX_SOFTWARE
            logger.warning("the engine ended with code %d; starting it again in %g s", code, delay)
            self._on_restart("hung" if self._hung else "died")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
                self._move(Signal.STOP)
                return 0
            self._move(Signal.RESTART)

    def compiling(self) -> None:
        if self.state is State.STARTING:
            self._move(Signal.COMPILING)

    def ready(self) -> None:
        if self.state in (State.STARTING, State.WARMING):
            self._ever_ready = True
            self._ready_since = time.monotonic()
            self._move(Signal.BECAME_READY)

    def hung(self) -> None:
        """Kill an engine that shows no life, after it had a chance to write where it is stuck."""
        if self._process is not None and not self._hung:
            self._hung = True
            self._spawn(self._abort(self._process))

    async def stop(self, timeout: float) -> None:
        """End the engine for good: SIGTERM, and SIGKILL `timeout` seconds later."""
        self._stopping.set()
        if self._process is None or self.state is State.DRAINING:
            return
        self._move(Signal.STOP)
        await self._end(self._process, signal.SIGTERM, timeout)

    def kill(self) -> None:
        """End the engine for good and at once."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()

    async def _live(self) -> int:
        """One life of the process, from start to exit; its exit code."""
        self._ready_since, self._hung = None, False
        self._on_state(self.state)
        # A session of its own: a terminal's Ctrl-C is for the server, which ends the engine in order.
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        if self._stopping.is_set():  # it was asked to stop while the process came to be
            process.kill()
        watchdog = asyncio.create_task(self._watch_startup(process))
        try:
            code = await process.wait()
        finally:
            watchdog.cancel()
            self._process = None
        self._move(Signal.EXITED)
        return code

    async def _watch_startup(self, process: asyncio.subprocess.Process) -> None:
        await asyncio.sleep(self._startup_timeout)
        if self._ready_since is None:
            logger.error("the engine was not ready after %g s", self._startup_timeout)
            self.hung()

    async def _abort(self, process: asyncio.subprocess.Process) -> None:
        await self._end(process, signal.SIGABRT, STACK_DUMP_SECONDS)

    async def _end(self, process: asyncio.subprocess.Process, number: signal.Signals, timeout: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _lived(self) -> float:
        return 0.0 if self._ready_since is None else time.monotonic() - self._ready_since

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _move(self, what: Signal) -> None:
        self.state = TRANSITIONS[self.state, what]
        self._on_state(self.state)
