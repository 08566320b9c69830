"""The HTTP processes beside the launcher's own, kept running: `--api-workers` less one.

Each has a listening socket of its own on the port, among which the kernel spreads connections. The launcher made the
sockets and holds them, so what connects while a process is being started anew waits for it instead of being refused. A
process ends with the launcher, however that ends: its stdin closes.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence

from gateway import child_process
from gateway.config.options import Options
from gateway.processes.http_process import WorkerSpec
from gateway.processes.http_worker import orders
from gateway.processes.supervisor import RestartBudget

logger = logging.getLogger("gateway")

STOP_SECONDS = 5.0
# Spans go to a collector, counts of all processes to a directory, and prompts to threads.
NAMES = ("HOME", "USER", "TMPDIR", "LD_PRELOAD", "PYTHONUNBUFFERED", "PROMETHEUS_MULTIPROC_DIR", *child_process.NETWORK)
PREFIXES = ("LC_", "OTEL_", "GRPC_", "TOKENIZERS_", "RAYON_")


class Workers:
    """None, where there are no `places`.

    Args:
        places: one for each.
        options: the launcher's, which each is told.
    """

    def __init__(self, specs: Sequence[WorkerSpec], options: Options) -> None:
        self._specs, self._options = specs, options
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Keep all running until `drain`, or until one can't be kept; the exit code the server should end with."""
        keepers = [asyncio.create_task(self._keep(spec)) for spec in self._specs]
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait((*keepers, ending), return_when=asyncio.FIRST_COMPLETED)
        if not self._ending.is_set():
            return os.EX_SOFTWARE
        await asyncio.gather(ending, *keepers)
        return 0

    def drain(self) -> None:
        """Have all turn new requests away. From now on none is started again."""
        self._ending.set()
        self._signal(signal.SIGTERM)

    async def stop(self) -> None:
        """End all, and what they still run; who does not end in time is killed."""
        self.drain()
        if self._processes:
            waiting = [asyncio.create_task(each.wait()) for each in self._processes.values()]
            await asyncio.wait(waiting, timeout=STOP_SECONDS)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, spec: WorkerSpec) -> None:
        """One process over its lives; ends when the server does, or when starting it again does not help."""
        budget = RestartBudget(self._options.max_engine_restarts, self._options.engine_restart_window)
        while True:
            began = time.monotonic()
            code = await self._live(spec)
            spec.counters.clear(spec.number)
            now = time.monotonic()
            if self._ending.is_set():
                return
            if (delay := budget.next_delay(now, now - began)) is None:
                logger.error("HTTP process %d ended with code %d, and %s: giving up", spec.number, code, budget)
                return
            logger.error("HTTP process %d ended with code %d; starting it again in %g s", spec.number, code, delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), delay)
                return

    async def _live(self, spec: WorkerSpec) -> int:
        process = await asyncio.create_subprocess_exec(
            *child_process.python("gateway.processes.http_worker"),
            cwd=spec.shared,
            env=child_process.environment(os.environ, NAMES, PREFIXES),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[spec.listener.fileno()],
            start_new_session=True,  # a terminal's Ctrl-C is for the launcher, which ends the others in order
        )
        self._processes[spec.number] = process
        if self._ending.is_set():  # while it came to be
            process.kill()
        try:
            await _tell(process, orders(spec, self._options))
            return await process.wait()
        finally:
            del self._processes[spec.number]


async def _tell(process: asyncio.subprocess.Process, line: bytes) -> None:
    """One that ended before it heard everything has its exit code."""
    assert process.stdin is not None
    process.stdin.write(line)
    with contextlib.suppress(ConnectionError):
        await process.stdin.drain()
