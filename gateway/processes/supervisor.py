"""Keeps one engine process running: start it, watch it, restart it, give up when restarts do not help.

The supervisor's state is a value, and its rules are a table, `TRANSITIONS`. A start that fails for a reason that a
restart cannot mend (a wrong option, a broken checkpoint, no permission) is not repeated: the engine's exit code becomes
the server's. The engine inherits stderr, so its one line of explanation is already where the operator looks.
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
from typing import IO, Any

from gateway.observability.sink import RestartCause
from jaxengine.options.group import GROUP_ENDED
from jaxengine.telemetry.logs import USAGE

logger = logging.getLogger(__name__)

# At least so long from one start to the next: the n-th value after n short lives in a row. A life is short if it lasted
# less than the last value. A longer life, of which loading takes most, is pause enough.
BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0)
WAIT_SECONDS = 1.0  # between looks at an engine that waits for others
REJOIN_SECONDS = 0.5  # behind an engine that ended only because that of another machine did
STACK_DUMP_SECONDS = 5.0  # between SIGABRT, which makes a stuck engine write its stacks, and SIGKILL
# Exit codes of an engine that would fail again at the next start; EX_UNAVAILABLE means the hub cannot be reached.
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
    """What can happen to an engine process."""

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
    """When to restart a process: at once, after a pause if its lives are short, and at most `restarts` times.

    Deaths older than `window` seconds no longer count, once a life has become ready. While none does, all deaths count,
    so that a start that fails slowly is given up too.
    """

    def __init__(self, restarts: int, window: float) -> None:
        self._restarts, self._window = restarts, window
        self._deaths: deque[float] = deque()
        self._short = 0  # short lives in a row

    def __str__(self) -> str:
        return f"{self._restarts} restarts in {self._window:g} s have not helped"

    def next_delay(self, now: float, lived: float, *, was_ready: bool = True) -> float | None:
        """Seconds to wait after a death at moment `now`, `lived` seconds after the start; None to give up."""
        while was_ready and self._deaths and now - self._deaths[0] > self._window:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self._restarts:
            return None
        pause = BACKOFF_SECONDS[min(self._short, len(BACKOFF_SECONDS) - 1)]
        self._short = self._short + 1 if lived < BACKOFF_SECONDS[-1] else 0
        return max(0.0, pause - lived)


class Supervisor:
    """One engine process, over all its lives.

    Args:
        command: the engine's command line.
        environment: the engine's whole environment.
        directory: the engine's working directory; made again if a cleaner of /tmp has removed it.
        budget: of restarts.
        startup_timeout: seconds the engine may take to become ready.
        on_state: called with every new state.
        on_restart: called with "died", "hung" or "asked" before each restart.
        name: what log lines call the engine.
        stderr: the engine's; ours if None.
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
        on_restart: Callable[[RestartCause], None] = lambda _: None,
        name: str = "the engine",
        stderr: IO[bytes] | None = None,
    ) -> None:
        self._command, self._environment, self._directory = tuple(command), dict(environment), directory
        self._startup_timeout = startup_timeout
        self._on_state, self._on_restart = on_state, on_restart
        self._budget = budget
        self._process: asyncio.subprocess.Process | None = None
        self._began = 0.0  # start of this life, in seconds of the monotonic clock
        self._starts = 0.0  # likewise, of what of it may take the startup timeout: its start, or when it last waited
        self._ready = self._ever_ready = False
        self._hung = self._asked = self._waits = False
        self._name, self._stderr = name, stderr
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.state = State.STARTING

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def run(self) -> int:
        """Keep the engine running until `stop`, or until restarts do not help; the exit code of the server."""
        while True:
            code = await self._live()
            if self._stopping.is_set():
                return 0
            if self._asked:
                logger.info("%s was stopped, and is started again", self._name)
                self._on_restart("asked")
                self._move(Signal.RESTART)
                continue
            if code in FINAL_CODES and not self._ever_ready:
                self._move(Signal.GIVE_UP)
                return code
            now = time.monotonic()
            delay: float | None = REJOIN_SECONDS
            if code != GROUP_ENDED:
                delay = self._budget.next_delay(now, now - self._began, was_ready=self._ready)
            if delay is None:
                logger.error("%s ended with code %d, and %s: giving up", self._name, code, self._budget)
                self._move(Signal.GIVE_UP)
                return os.EX_SOFTWARE
            logger.warning("%s ended with code %d; starting it again in %g s", self._name, code, delay)
            self._on_restart("hung" if self._hung else "died")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
                self._move(Signal.STOP)
                return 0
            self._move(Signal.RESTART)

    def compiling(self) -> None:
        """The engine reports that it compiles."""
        if self.state is State.STARTING:
            self._move(Signal.COMPILING)

    def waits(self, waits: bool) -> None:
        """The engine reports that it waits, for those of other machines or its model, or does so no more. Waiting is no
        part of a start that may take too long.
        """
        if self._waits:
            self._starts = time.monotonic()
        self._waits = waits

    def ready(self) -> None:
        """The engine reports that it is ready."""
        if self.state in (State.STARTING, State.WARMING):
            self._ready = self._ever_ready = True
            self._move(Signal.BECAME_READY)

    def hung(self) -> None:
        """Abort an engine that shows no life: SIGABRT makes it write its stacks, SIGKILL follows."""
        if self._process is not None and not self._hung:
            self._hung = True
            self._spawn(self._abort(self._process))

    async def restart(self, timeout: float) -> None:
        """End this life of the engine, by SIGTERM, or SIGKILL `timeout` seconds later, also if the caller is cancelled
        meanwhile. The next one begins at once.
        """
        ended = self._process
        if ended is None:  # another life is about to begin, or none will
            return
        self._asked = True
        await asyncio.shield(self._spawn(self._end(ended, signal.SIGTERM, timeout)))
        while self._process is ended:
            await asyncio.sleep(0)

    async def stop(self, timeout: float) -> None:
        """End the engine for good: SIGTERM, and SIGKILL `timeout` seconds later."""
        self._stopping.set()
        if self._process is None or self.state is State.DRAINING:
            return
        self._move(Signal.STOP)
        await self._end(self._process, signal.SIGTERM, timeout)

    def end_with_this_life(self) -> None:
        """When the engine ends by itself, that is for good."""
        self._stopping.set()

    def kill(self) -> None:
        """End the engine for good and at once."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()

    async def _live(self) -> int:
        """One life of the engine process, from start to exit; its exit code."""
        self._ready = self._hung = self._asked = self._waits = False
        self._on_state(self.state)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._began = self._starts = time.monotonic()
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._directory,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,  # a terminal's Ctrl-C is for the server, which ends the engine in order
        )
        if self._stopping.is_set():  # `stop` or `kill` came while the process was being created
            process.kill()
        watchdog = asyncio.create_task(self._watch_startup())
        try:
            code = await process.wait()
        finally:
            watchdog.cancel()
            self._process = None
        self._move(Signal.EXITED)
        return code

    async def _watch_startup(self) -> None:
        while self._waits or (left := self._starts + self._startup_timeout - time.monotonic()) > 0:
            await asyncio.sleep(WAIT_SECONDS if self._waits else left)
        if not self._ready:
            logger.error("%s was not ready after %g s", self._name, self._startup_timeout)
            self.hung()

    async def _abort(self, process: asyncio.subprocess.Process) -> None:
        await self._end(process, signal.SIGABRT, STACK_DUMP_SECONDS)

    async def _end(self, process: asyncio.subprocess.Process, number: signal.Signals, timeout: float) -> None:
        """Send a signal, and SIGKILL if the process has not ended after `timeout` seconds."""
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _move(self, what: Signal) -> None:
        self.state = TRANSITIONS[self.state, what]
        self._on_state(self.state)
