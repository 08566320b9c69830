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
import sys
import time
from collections.abc import Sequence

from gateway.front import Place
from gateway.supervisor import RestartBudget
from gateway.worker import place_flags
from jaxengine.rpc import transport

logger = logging.getLogger("gateway")

STOP_SECONDS = 5.0


class Workers:
    """None, where there are no `places`.

    Args:
        places: one for each.
        argv: the launcher's, of which, and of its environment, each makes its options.
    """

    def __init__(self, places: Sequence[Place], argv: Sequence[str]) -> None:
        self._places, self._argv = places, argv
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Keep all running until `drain`, or until one can't be kept; the exit code the server should end with."""
        keepers = [asyncio.create_task(self._keep(place)) for place in self._places]
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

    async def _keep(self, place: Place) -> None:
        """One process over its lives; ends when the server does, or when starting it again does not help."""
        budget = RestartBudget()
        while True:
            began = time.monotonic()
            code = await self._live(place)
            place.tally.clear(place.number)
            now = time.monotonic()
            if self._ending.is_set():
                return
            if (delay := budget.next_delay(now, now - began)) is None:
                logger.error("HTTP process %d died too often: giving up", place.number)
                return
            logger.error("HTTP process %d ended with code %d; starting it again in %g s", place.number, code, delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), delay)
                return

    async def _live(self, place: Place) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.worker", *place_flags(place), "--", *self._argv),
            env={**os.environ, transport.TOKEN_VARIABLE: place.token},
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[place.listener.fileno()],
            start_new_session=True,  # a terminal's Ctrl-C is for the launcher, which ends the others in order
        )
        self._processes[place.number] = process
        if self._ending.is_set():  # while it came to be
            process.kill()
        try:
            return await process.wait()
        finally:
            del self._processes[place.number]
