"""The engine processes of a server: each one supervised, and all of them started, stopped and killed together.

One that cannot be kept running leaves the others alone. The server ends with the last of them.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from gateway.config.options import Options
from gateway.observability.sink import RestartCause
from gateway.processes import engine_process
from gateway.processes.engine_process import EngineCommand, EnginePlace
from gateway.processes.supervisor import RestartBudget, Supervisor


class Engines:
    """
    Args:
        environ: our environment, of which engines see a part.
        token: of this boot.
        places: of the engines.
        command: makes an engine's command line.
        on_state: called with an engine's number and its new state.
        on_restart: called with an engine's number and the cause before each restart.
        stderr: of the engines; ours if None.
    """

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        token: str,
        places: Sequence[EnginePlace],
        command: EngineCommand,
        on_state: Callable[[int, str], None],
        on_restart: Callable[[int, RestartCause], None],
        stderr: IO[bytes] | None = None,
    ) -> None:
        self._supervisors = [
            Supervisor(
                command(options, place, os.getpid()),
                engine_process.environment(environ, token, place.devices),
                place.socket.parent,
                RestartBudget(options.max_engine_restarts, options.engine_restart_window),
                startup_timeout=options.startup_timeout,
                on_state=lambda state, number=number: on_state(number, state.value),  # type: ignore[misc]
                on_restart=lambda cause, number=number: on_restart(number, cause),  # type: ignore[misc]
                name="the engine" if len(places) == 1 else f"engine {number}",
                stderr=stderr,
            )
            for number, place in enumerate(places)
        ]

    def __getitem__(self, number: int) -> Supervisor:
        return self._supervisors[number]

    def __len__(self) -> int:
        return len(self._supervisors)

    async def run(self) -> int:
        """Keep the engines running until `stop`, or until restarts help none of them; the exit code of the server."""
        lives = [asyncio.create_task(each.run()) for each in self._supervisors]
        codes = [await ended for ended in asyncio.as_completed(lives)]
        return codes[-1]

    async def stop(self, timeout: float) -> None:
        """End all for good: SIGTERM, and SIGKILL `timeout` seconds later."""
        await asyncio.gather(*(each.stop(timeout) for each in self._supervisors))

    def kill(self) -> None:
        """End all for good and at once."""
        for each in self._supervisors:
            each.kill()
