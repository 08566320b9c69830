"""One run of the server, joined in the launcher's process: HTTP, the engines, further HTTP processes.

SIGTERM closes the tunnel, if there is one, turns new requests away, lets running requests finish within the grace time,
ends the others with an error, and only then stops the processes. A second signal stops them at once. Further HTTP
processes go through the same steps.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from fastapi import FastAPI

from gateway.config.options import Options
from gateway.engine.listener import EngineListener
from gateway.http.listener import address_of
from gateway.observability.sink import RestartCause
from gateway.processes import devices, signals
from gateway.processes.engine_process import EngineCommand, EnginePlace
from gateway.processes.engines import Engines
from gateway.processes.http_process import HttpProcess
from gateway.processes.http_workers import Workers
from gateway.processes.progress import StartProgress
from gateway.processes.replica_operations import ReplicaOperations
from gateway.processes.runtime_directory import write_token
from gateway.processes.tunnel import Tunnel
from gateway.processes.welcome import Welcome
from gateway.processes.worker_spec import COUNTERS_FILE, WorkerSpec
from gateway.request.gateway_state import Gateway
from gateway.request.shared_counters import SharedCounters
from gateway.text.loader import UnusableModel
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.progress import PATIENT
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
    keeps for them. The engines' sockets and all that the HTTP processes share lie in `directory`. `engine` makes an
    engine's command line; `began` is when the launcher began, in seconds of the monotonic clock.
    """
    address = None if grpc is None else address_of(grpc)
    places = devices.places(options, environ, directory)
    try:
        first, *others = _worker_specs(options, listeners, address, directory, [each.socket for each in places])
    except OSError as error:  # the disk is full, of which a directory needs less than a file
        return logs.fail(f"cannot write into {directory}: {error.strerror}", os.EX_CANTCREAT)
    first = replace(first, admin=admin)
    return await Server(options, environ, first, places, Workers(others, options), engine, began, tracing).run()


def unheard(
    options: Options,
    environ: Mapping[str, str],
    admin: socket.socket | None,
    directory: Path,
    engine: EngineCommand,
    tracing: Tracing,
    stderr: IO[bytes],
) -> "Server":
    """A server that listens on no port but `admin`: its application is for another server to call."""
    places = devices.places(options, environ, directory)
    [spec] = _worker_specs(options, [None], None, directory, [each.socket for each in places])
    spec, workers = replace(spec, admin=admin), Workers([], options)
    return Server(options, environ, spec, places, workers, engine, time.monotonic(), tracing, stderr)


def _worker_specs(
    options: Options,
    listeners: Sequence[socket.socket | None],
    grpc: str | None,
    directory: Path,
    engines: Sequence[Path],
) -> list[WorkerSpec]:
    shared = directory if len(listeners) > 1 else None
    token, callers, replicas = transport.new_token(), len(options.keys), len(engines)
    write_token(directory, token)
    if shared:
        counters = SharedCounters.create(directory / COUNTERS_FILE, len(listeners), callers, replicas)
    else:
        counters = SharedCounters(callers, replicas=replicas)
    return [
        WorkerSpec(number, listener, tuple(engines), token, counters, shared, grpc=grpc)
        for number, listener in enumerate(listeners)
    ]


class Server(EngineListener):
    """One run of the launcher.

    Args:
        environ: our environment, of which engines see a part.
        spec: of this process's own HTTP.
        places: of the engines.
        workers: the other HTTP processes, if any.
        engine: makes an engine's command line.
        began: when the launcher began, in seconds of the monotonic clock.
        stderr: of the engines; ours if None.
    """

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        spec: WorkerSpec,
        places: Sequence[EnginePlace],
        workers: Workers,
        engine: EngineCommand,
        began: float,
        tracing: Tracing,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self._options, self._workers, self._began = options, workers, [began] * len(places)
        self._admin, self._grpc = spec.admin, spec.grpc
        self._url: str | None = None
        if spec.listener is not None:
            scheme, port = "https" if options.ssl_certfile else "http", spec.listener.getsockname()[1]
            host = f"[{options.hostname}]" if ":" in options.hostname else options.hostname
            self._url = f"{scheme}://{host}:{port}"
        listeners = [self, *self._welcome(spec.listener, len(places))]
        self._http_process = HttpProcess(options, spec, tracing, listeners)
        metrics = self._http_process.metrics
        self._engines = Engines(
            options, environ, spec.token, places, engine, metrics.engine_state, self._restarted, stderr
        )
        self._operations = ReplicaOperations(
            self._engines,
            spec.counters,
            options.graceful_termination_timeout,
            lambda: self._http_process.gateway.engine.replicas,
        )
        self._http_process.gateway.operations = self._operations
        self._tunnel = None if spec.listener is None else Tunnel.of(options, spec.listener)
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        bars = not options.json_output and len(places) == 1
        names = [self._prefix(number).strip() or "engine" for number in range(len(places))]
        self._start_progress = [StartProgress(engine=name, bars=bars) for name in names]
        self.failure: BaseException | None = None  # of this process, that ended the server

    @property
    def app(self) -> FastAPI:
        return self._http_process.app

    @property
    def gateway(self) -> Gateway:
        return self._http_process.gateway

    async def run(self) -> int:
        """Serve until a signal, or until a failure that restarting the engine does not mend; the exit code."""
        with signals.delivered(self._signals.put_nowait):
            return await self.run_until_stopped()

    def stop(self) -> None:
        """What SIGTERM does."""
        self._signals.put_nowait(signal.SIGTERM)

    async def run_until_stopped(self) -> int:
        """As `run`, in a process whose signals are another's."""
        http = self._http_process.start()
        engines = asyncio.create_task(self._engines.run())
        workers = asyncio.create_task(self._workers.run())
        signalled = asyncio.create_task(self._signals.get())
        if self._url is not None:
            logger.info("listening on %s", self._url)
        if self._admin is not None:
            logger.info(
                "probes and metrics on http://%s:%d", self._options.admin_hostname, self._admin.getsockname()[1]
            )
        if self._grpc is not None:
            logger.info("gRPC on %s", self._grpc)
        parts: list[asyncio.Task[int] | asyncio.Task[None]] = [engines, workers, *http]
        await asyncio.wait({*parts, signalled}, return_when=asyncio.FIRST_COMPLETED)
        self._operations.stop()
        if self._tunnel is not None:
            await self._tunnel.close()
        if signalled.done():
            code = await self._stop(signalled.result())
        else:
            self._http_process.gateway.alive = False
            self._http_process.abort_requests()
            ended = next(part for part in parts if part.done())
            self.failure = ended.exception()
            code = exit_code(ended)
        await self._workers.stop()
        await self._http_process.stop()
        if self._tunnel is not None:
            await self._tunnel.stop()
        await self._engines.stop(ENGINE_STOP_SECONDS)
        await asyncio.wait((engines, workers))
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
            self._engines.kill()
            return 128 + number
        return 0

    async def _idle(self) -> None:
        while self._http_process.admission.active:
            await asyncio.sleep(0.02)

    def engine_ready(self, engine: int, description: pb.Description) -> None:
        self._engines[engine].ready()
        self._start_progress[engine].close()
        logger.info(
            "%sready: %s (%s, %d x %s)%s after %.1f s, with a context of %d tokens",
            *(self._prefix(engine), description.model_id, description.dtype),
            *(description.device_count, description.device_kind),
            *(f" on {self._url}" if self._url else "", time.monotonic() - self._began[engine]),
            description.max_total_tokens,
        )
        if self._tunnel is not None:
            self._tunnel.open()
        asked, longest = self._options.max_input_tokens, self._http_process.gateway.max_input_tokens
        if asked is not None and asked > longest:
            logger.warning("prompts have at most %d tokens, not --max-input-tokens %d", longest, asked)

    def engine_progress(self, engine: int, description: pb.Description) -> None:
        self._engines[engine].waits(description.progress.startswith(PATIENT))
        if description.state == pb.WARMING:
            self._engines[engine].compiling()
        if description.state != pb.READY:
            self._start_progress[engine].show(description.progress)

    def engine_hung(self, engine: int) -> None:
        self._engines[engine].hung()

    def _welcome(self, listener: socket.socket | None, engines: int) -> list[EngineListener]:
        """Where there is a port, of which a person could be told."""
        if listener is None:
            return []

        def has_template() -> bool:
            model = self._http_process.gateway.text_loader.current
            return model is not None and model.template is not None

        return [Welcome(self._options, listener.getsockname()[1], engines, has_template)]

    def _prefix(self, engine: int) -> str:
        """How a log line begins that is about one of several engines."""
        return "" if len(self._engines) == 1 else f"engine {engine} "

    def _restarted(self, engine: int, cause: RestartCause) -> None:
        self._http_process.metrics.engine_restarted(engine, cause)
        self._began[engine] = time.monotonic()


def exit_code(ended: "asyncio.Task[int] | asyncio.Task[None]") -> int:
    """The exit code for a part of the server that ended by itself; the reason is logged here unless the part did so."""
    error = ended.exception()
    if error is None:
        return ended.result() or os.EX_SOFTWARE
    if isinstance(error, UnusableModel):
        return logs.fail(f"the model's files cannot be used: {error}", os.EX_DATAERR)
    logger.critical("internal error", exc_info=error)
    return os.EX_SOFTWARE
