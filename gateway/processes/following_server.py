"""One run of the launcher on a machine that follows another: an engine that is kept running, and no HTTP.

Requests come to the machine that leads. What an operator sees here is the log, and the exit code.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from gateway.config.options import Options
from gateway.engine.client import EngineClient
from gateway.engine.listener import EngineListener
from gateway.observability.sink import RestartCause
from gateway.processes import engine_process, signals
from gateway.processes.devices import places
from gateway.processes.engine_process import EngineCommand
from gateway.processes.progress import StartProgress
from gateway.processes.supervisor import RestartBudget, State, Supervisor
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.progress import PATIENT

logger = logging.getLogger("gateway")

ENGINE_STOP_SECONDS = 5.0


class FollowingServer(EngineListener):
    """One run of the launcher.

    Args:
        environ: our environment, of which the engine sees a part.
        directory: where the engine's socket lies.
        engine: makes an engine's command line.
        began: when the launcher began, in seconds of the monotonic clock.
    """

    def __init__(
        self, options: Options, environ: Mapping[str, str], directory: Path, engine: EngineCommand, began: float
    ) -> None:
        (place,) = places(options, environ, directory)
        token = transport.new_token()
        self._rank, self._began = options.node_rank, began
        self._grace = options.graceful_termination_timeout
        self._supervisor = Supervisor(
            engine(options, place, os.getpid()),
            engine_process.environment(environ, token, place.devices),
            directory,
            RestartBudget(options.max_engine_restarts, options.engine_restart_window),
            startup_timeout=options.startup_timeout,
            on_restart=self._restarted,
        )
        self._client = EngineClient(place.socket, token, hang_limit=options.engine_hang_timeout, listeners=[self])
        self._progress = StartProgress(bars=not options.json_output)

    async def run(self) -> int:
        """Follow until a signal, or until a failure that a restart does not mend; the exit code."""
        received: asyncio.Queue[int] = asyncio.Queue()
        with signals.delivered(received.put_nowait):
            engine = asyncio.create_task(self._supervisor.run())
            client = asyncio.create_task(self._client.run())
            signalled = asyncio.create_task(received.get())
            await asyncio.wait((engine, client, signalled), return_when=asyncio.FIRST_COMPLETED)
            if signalled.done():
                await self._stop(engine, received)
            elif not engine.done():  # what went wrong is raised below
                self._supervisor.kill()
            code = await engine
            if client.done():
                client.result()
            client.cancel()
            signalled.cancel()
            await asyncio.wait((client, signalled))
            return code

    async def _stop(self, engine: "asyncio.Task[int]", received: "asyncio.Queue[int]") -> None:
        """Follow on while machine 0, which may have had the signal too, finishes its requests: they need this machine.
        The grace time, or a second signal, ends that.
        """
        if self._supervisor.state is State.READY:
            self._supervisor.end_with_this_life()
            again = asyncio.create_task(received.get())
            logger.info("stopping with machine 0, or after %g s", self._grace)
            await asyncio.wait((engine, again), timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
            again.cancel()
        await self._supervisor.stop(ENGINE_STOP_SECONDS)

    def engine_progress(self, engine: int, description: pb.Description) -> None:
        self._supervisor.waits(description.progress.startswith(PATIENT))
        if description.state == pb.WARMING:
            self._supervisor.compiling()
        if description.state != pb.READY:
            self._progress.show(description.progress)

    def engine_ready(self, engine: int, description: pb.Description) -> None:
        self._supervisor.ready()
        self._progress.close()
        logger.info("machine %d follows, after %.1f s", self._rank, time.monotonic() - self._began)

    def _restarted(self, cause: RestartCause) -> None:
        self._began = time.monotonic()

    def engine_hung(self, engine: int) -> None:
        self._supervisor.hung()
