"""The HTTP processes beside the launcher's own, kept running: `--api-workers` less one.

Each process has a listening socket of its own on the port, and the kernel spreads connections over the sockets. The
launcher makes the sockets and keeps them open, so a client that connects while a process is restarted waits and is not
refused. A process ends with the launcher, however the launcher ends: its stdin closes.
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
from gateway.processes.supervisor import RestartBudget
from gateway.processes.worker_spec import WORKER_MODULE, WorkerSpec, to_line

logger = logging.getLogger("gateway")

STOP_SECONDS = 5.0
# What a worker may see of the environment: how spans reach a collector, where metrics are shared, how many threads
# tokenise.
NAMES = ("HOME", "USER", "TMPDIR", "LD_PRELOAD", "PYTHONUNBUFFERED", "PROMETHEUS_MULTIPROC_DIR", *child_process.NETWORK)
PREFIXES = ("LC_", "OTEL_", "GRPC_", "TOKENIZERS_", "RAYON_")


class Workers:
    """The HTTP workers of a server, perhaps none.

    Args:
        specs: one for each worker.
        options: the launcher's, which every worker gets too.
    """

    def __init__(self, specs: Sequence[WorkerSpec], options: Options) -> None:
        self._specs, self._options = specs, options
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Keep all running until `drain`, or until one cannot be kept running; the exit code of the server. Raises
        OSError: a process cannot be made.
        """
        keepers = [asyncio.create_task(self._keep(spec)) for spec in self._specs]
        ending = asyncio.create_task(self._ending.wait())
        done, _ = await asyncio.wait((*keepers, ending), return_when=asyncio.FIRST_COMPLETED)
        if not self._ending.is_set():
            for keeper in done:
                keeper.result()  # raises what is not logged yet
            return os.EX_SOFTWARE
        await asyncio.gather(ending, *keepers)
        return 0

    def drain(self) -> None:
        """Have all workers turn new requests away. From now on none is restarted."""
        self._ending.set()
        self._signal(signal.SIGTERM)

    async def stop(self) -> None:
        """End all workers and their requests; kill those that have not ended after `STOP_SECONDS`."""
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
        """Run one worker and restart it when it ends, until the server ends or the restart budget is spent."""
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
        """Start one worker and wait for its end; its exit code."""
        assert spec.listener is not None
        process = await asyncio.create_subprocess_exec(
            *child_process.python(WORKER_MODULE),
            cwd=spec.shared,
            env=child_process.environment(os.environ, NAMES, PREFIXES),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[spec.listener.fileno()],
            start_new_session=True,  # a terminal's Ctrl-C is for the launcher, which ends the workers in order
        )
        self._processes[spec.number] = process
        if self._ending.is_set():  # `drain` came while the process was being created, and signalled the others only
            process.kill()
        try:
            await _send(process, to_line(spec, self._options))
            return await process.wait()
        finally:
            del self._processes[spec.number]


async def _send(process: asyncio.subprocess.Process, line: bytes) -> None:
    """Write `line` to a worker's stdin. A worker that ends before it has read it is reported by its exit code."""
    assert process.stdin is not None
    process.stdin.write(line)
    with contextlib.suppress(ConnectionError):
        await process.stdin.drain()
