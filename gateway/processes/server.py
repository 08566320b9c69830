"""One run of the server, joined in the launcher's process: HTTP, the engine's supervisor, further HTTP processes.

SIGTERM closes the tunnel, if there is one, turns new requests away, lets running requests finish within the grace time,
ends the others with an error, and only then stops the processes. A second signal stops them at once. Further HTTP
processes go through the same steps.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gateway.config.options import Options
from gateway.engine.listener import EngineListener
from gateway.http.listener import address_of
from gateway.processes import engine_process, signals
from gateway.processes.engine_process import EngineCommand
from gateway.processes.http_process import HttpProcess
from gateway.processes.http_workers import Workers
from gateway.processes.progress import StartProgress
from gateway.processes.runtime_directory import SOCKET
from gateway.processes.supervisor import RestartBudget, Supervisor
from gateway.processes.tunnel import Tunnel
from gateway.processes.worker_spec import COUNTERS_FILE, WorkerSpec
from gateway.request.shared_counters import SharedCounters
from gateway.text.loader import UnusableModel
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger("gateway")

ENGINE_STOP_SECONDS = 5.0


async def serve(
    options: Options,
    environ: Mapping[str, str],
    listeners: Sequence[socket.socket],
    admin: socket.socket | None,
    grpc: socket.socket | None,
    directory: Path,
    engine: EngineCommand,
    began: float,
    tracing: Tracing,
) -> int:
    """Serve with one HTTP process for each of `listeners`; the exit code.

    This process takes the first listener and the `admin` listener; all serve gRPC on the port that the socket `grpc`
    keeps for them. The engine's socket and all that the HTTP processes share lie in `directory`. `engine` makes the
    engine's command line; `began` is when the launcher began, in seconds of the monotonic clock.
    """
    address = None if grpc is None else address_of(grpc)
    first, *others = _worker_specs(options, listeners, address, directory)
    first = replace(first, admin=admin)
    return await Server(options, environ, first, Workers(others, options), engine, began, tracing).run()


def _worker_specs(
    options: Options, listeners: Sequence[socket.socket], grpc: str | None, directory: Path
) -> list[WorkerSpec]:
    shared = directory if len(listeners) > 1 else None
    path, token, callers = directory / SOCKET, transport.new_token(), len(options.keys)
    if shared:
        counters = SharedCounters.create(directory / COUNTERS_FILE, len(listeners), callers)
    else:
        counters = SharedCounters(callers)
    return [
        WorkerSpec(number, listener, path, token, counters, shared, grpc=grpc)
        for number, listener in enumerate(listeners)
    ]


class Server(EngineListener):
    """One run of the launcher.

    Args:
        environ: our environment, of which the engine sees a part.
        spec: of this process's own HTTP.
        workers: the other HTTP processes, if any.
        engine: makes the engine's command line.
        began: when the launcher began, in seconds of the monotonic clock.
    """

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        spec: WorkerSpec,
        workers: Workers,
        engine: EngineCommand,
        began: float,
        tracing: Tracing,
    ) -> None:
        self._options, self._workers, self._began = options, workers, began
        port = spec.listener.getsockname()[1]
        self._admin, self._grpc = spec.admin, spec.grpc
        self._url = f"{'https' if options.ssl_certfile else 'http'}://{options.hostname}:{port}"
        self._supervisor = Supervisor(
            engine(options, spec.engine, os.getpid()),
            engine_process.environment(environ, spec.token),
            spec.engine.parent,
            RestartBudget(options.max_engine_restarts, options.engine_restart_window),
            startup_timeout=options.startup_timeout,
            on_state=lambda state: self._http_process.metrics.engine_state(state.value),
            on_restart=self._restarted,
        )
        self._http_process = HttpProcess(options, spec, tracing, listeners=[self])
        self._tunnel = Tunnel.of(options, spec.listener)
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._start_progress = StartProgress(bars=not options.json_output)

    async def run(self) -> int:
        """Serve until a signal, or until a failure that restarting the engine does not mend; the exit code."""
        with signals.delivered(self._signals.put_nowait):
            return await self._run()

    async def _run(self) -> int:
        http = self._http_process.start()
        engine = asyncio.create_task(self._supervisor.run())
        workers = asyncio.create_task(self._workers.run())
        signalled = asyncio.create_task(self._signals.get())
        logger.info("listening on %s", self._url)
        if self._admin is not None:
            logger.info(
                "probes and metrics on http://%s:%d", self._options.admin_hostname, self._admin.getsockname()[1]
            )
        if self._grpc is not None:
            logger.info("gRPC on %s", self._grpc)
        parts: list[asyncio.Task[int] | asyncio.Task[None]] = [engine, workers, *http]
        await asyncio.wait({*parts, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if self._tunnel is not None:
            await self._tunnel.close()
        if signalled.done():
            code = await self._stop(signalled.result())
        else:
            self._http_process.gateway.alive = False
            code = exit_code(next(part for part in parts if part.done()))
        await self._workers.stop()
        await self._http_process.stop()
        if self._tunnel is not None:
            await self._tunnel.stop()
        await self._supervisor.stop(ENGINE_STOP_SECONDS)
        await asyncio.wait((engine, workers))
        return code

    async def _stop(self, number: int) -> int:
        """Let running requests finish within the grace time, unless a second signal comes; the exit code."""
        self._http_process.drain()
        self._workers.drain()
        admission, grace = self._http_process.admission, self._options.graceful_termination_timeout
        logger.info("stopping: %d requests are running", admission.active)
        idle, again = asyncio.create_task(self._idle()), asyncio.create_task(self._signals.get())
        await asyncio.wait((idle, again), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            logger.warning("stopping with %d requests cut", admission.active)
            self._http_process.abort_requests()
        if again.done():
            self._supervisor.kill()
            return 128 + number
        return 0

    async def _idle(self) -> None:
        while self._http_process.admission.active:
            await asyncio.sleep(0.02)

    def engine_ready(self, description: pb.Description) -> None:
        self._supervisor.ready()
        self._start_progress.close()
        logger.info(
            "ready: %s (%s, %d x %s) on %s after %.1f s",
            *(description.model_id, description.dtype, description.device_count, description.device_kind),
            *(self._url, time.monotonic() - self._began),
        )
        if self._tunnel is not None:
            self._tunnel.open()
        asked, longest = self._options.max_input_tokens, self._http_process.gateway.max_input_tokens
        if asked is not None and asked > longest:
            logger.warning("prompts have at most %d tokens, not --max-input-tokens %d", longest, asked)

    def engine_progress(self, description: pb.Description) -> None:
        if description.state == pb.WARMING:
            self._supervisor.compiling()
        if description.state != pb.READY:
            self._start_progress.show(description.progress)

    def engine_hung(self) -> None:
        self._supervisor.hung()

    def _restarted(self, cause: Literal["died", "hung"]) -> None:
        self._http_process.metrics.engine_restarted(cause)
        self._began = time.monotonic()


def exit_code(ended: "asyncio.Task[int] | asyncio.Task[None]") -> int:
    """The exit code for a part of the server that ended by itself; the reason is logged here unless the part did so."""
    error = ended.exception()
    if error is None:
        return ended.result() or os.EX_SOFTWARE
    if isinstance(error, UnusableModel):
        return logs.fail(f"the model's files cannot be used: {error}", os.EX_DATAERR)
    logger.critical("internal error", exc_info=error)
    return os.EX_SOFTWARE
