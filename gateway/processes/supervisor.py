"""Keeps one engine process running: start, watch, restart, give up when that does not help.

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
from pathlib import Path
from typing import Any, Literal

from jaxengine.telemetry.logs import USAGE

logger = logging.getLogger(__name__)

# From one start to the next at least, by how many lives before were shorter than the last of these. Who waits for the
# engine waits for its loading anyway, which is pause enough.
BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0)
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
    """When to start a process again: at once, but with a pause where lives are short, and at most `restarts` times
    within `window` seconds. Deaths count for longer while no life becomes ready: a start that fails slowly ends too.
    """

    def __init__(self, restarts: int, window: float) -> None:
        self._restarts, self._window = restarts, window
        self._deaths: deque[float] = deque()
        self._short = 0  # lives in a row

    def __str__(self) -> str:
        return f"{self._restarts} restarts in {self._window:g} s have not helped"

    def next_delay(self, now: float, lived: float, *, was_ready: bool = True) -> float | None:
        """Seconds to wait after a death at `now`, `lived` seconds after the start; None to give up."""
        while was_ready and self._deaths and now - self._deaths[0] > self._window:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self._restarts:
            return None
        pause = BACKOFF_SECONDS[min(self._short, len(BACKOFF_SECONDS) - 1)]
        self._short = self._short + 1 if lived < BACKOFF_SECONDS[-1] else 0
        return max(0.0, pause - lived)


class Supervisor:
    """One engine process, over its lives.

    Args:
        command: how to start it.
        environment: all it may see of ours.
        directory: to start it in; made anew if it is gone, which cleaners of /tmp may see to.
        budget: of its restarts.
        startup_timeout: seconds it may take to become ready.
        on_state: told of every change of state.
        on_restart: told "died" or "hung" before each restart.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        budget: RestartBudget,
        *,
        startup_timeout: float = 1800.0,
        on_state: Callable[[State], None] = lambda _: None,
        on_restart: Callable[[Literal["died", "hung"]], None] = lambda _: None,
    ) -> None:
        self._command, self._environment, self._directory = tuple(command), dict(environment), directory
        self._startup_timeout = startup_timeout
        self._on_state, self._on_restart = on_state, on_restart
        self._budget = budget
        self._process: asyncio.subprocess.Process | None = None
        self._began = 0.0  # this life, on the monotonic clock
        self._ready = self._ever_ready = False
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
            now = time.monotonic()
            delay = self._budget.next_delay(now, now - self._began, was_ready=self._ready)
            if delay is None:
                logger.error("the engine ended with code %d, and %s: giving up", code, self._budget)
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
            self._ready = self._ever_ready = True
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
        self._ready = self._hung = False
        self._on_state(self.state)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._began = time.monotonic()
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._directory,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for the server, which ends the engine in order
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
        if not self._ready:
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _move(self, what: Signal) -> None:
        self.state = TRANSITIONS[self.state, what]
        self._on_state(self.state)
