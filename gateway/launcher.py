"""`text-generation-launcher`: one command from options to a served model.

The order matters. The port is bound before anything slow, so a busy port fails at once and clients get a 503 with
advice instead of a refused connection. Then the engine process is started and watched while HTTP already answers. The
signals are ours, not uvicorn's, which would close the listener first: SIGTERM turns new work away, lets running
requests finish within the grace time, tells those that did not, and only then stops. A second signal stops at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import uvicorn
import uvloop

from gateway import engine_process, logs
from gateway.admission import Admission
from gateway.app import create_app
from gateway.engine_client import EngineClient
from gateway.environment import environment_report
from gateway.guard import MAX_HEAD_BYTES, TimedProtocol
from gateway.metrics import Metrics
from gateway.options import Options, UsageError, parse
from gateway.progress import StartProgress
from gateway.state import Gateway
from gateway.supervisor import Supervisor
from gateway.text import Texts
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.tracing import Tracing, TracingUnavailable

logger = logging.getLogger("gateway")

USAGE, BAD_DATA, SOFTWARE, CANNOT_BIND = 2, 65, 70, 71
ENGINE_STOP_SECONDS = 5.0
HTTP_STOP_SECONDS = 2
BACKLOG = 2048
CONNECTIONS_PER_REQUEST = 8  # most connections are idle or probes

EngineCommand = Callable[[Options, Path, int], list[str]]


def main() -> None:
    sys.exit(launch(sys.argv[1:], os.environ))


def launch(argv: Sequence[str], environ: Mapping[str, str], engine: EngineCommand = engine_process.command) -> int:
    """Run the server with the engine that `engine` says how to start; the exit code.

    Whatever stops it from starting is one line on stderr.
    """
    began = time.monotonic()
    try:
        options = parse(argv, environ)
    except UsageError as error:
        return _fail(str(error), USAGE)
    if problem := tls_problem(options):
        return _fail(problem, USAGE)
    try:
        listener = bind(options.hostname, options.port)
    except OSError as error:
        return _fail(f"cannot listen on {options.hostname}:{options.port}: {error.strerror}", CANNOT_BIND)
    logs.configure(options.json_output)
    for line in options.warnings:
        logger.warning(line)
    if options.env:
        logger.info("%s", environment_report())
    try:
        tracing = Tracing.to(options.otlp_endpoint, options.otlp_service_name)
    except TracingUnavailable as error:
        return _fail(str(error), USAGE)
    with contextlib.closing(tracing), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(options, environ, listener, engine, began, tracing))


async def _run(
    options: Options,
    environ: Mapping[str, str],
    listener: socket.socket,
    engine: EngineCommand,
    began: float,
    tracing: Tracing,
) -> int:
    return await Server(options, environ, listener, engine, began, tracing).run()


def bind(hostname: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError if the name is unknown or the address taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        hostname, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def tls_problem(options: Options) -> str | None:
    """What is wrong with the certificate and key, if anything is."""
    if options.ssl_certfile is None:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    except OSError as error:  # SSLError is one
        return f"--ssl-certfile and --ssl-keyfile cannot be used: {error.strerror or error}"
    return None


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """Everything of one run, joined: HTTP, the client of the engine, and the engine's supervisor."""

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        listener: socket.socket,
        engine: EngineCommand,
        began: float,
        tracing: Tracing,
    ) -> None:
        self._options, self._listener, self._began = options, listener, began
        port = listener.getsockname()[1]
        self._url = f"{'https' if options.ssl_certfile else 'http'}://{options.hostname}:{port}"
        self._socket = path = engine_process.socket_path(options.shard_uds_path, port)
        token = transport.new_token()
        self._metrics = Metrics()
        self._admission = Admission(options.max_concurrent_requests, options.max_queued_tokens)
        self._texts = Texts(options.validation_workers, options.tokenizer_config_path)
        self._supervisor = Supervisor(
            engine(options, path, os.getpid()),
            engine_process.environment(environ, token),
            startup_timeout=options.startup_timeout,
            on_state=lambda state: self._metrics.engine_state(state.value),
            on_restart=self._restarted,
        )
        self._client = EngineClient(
            path,
            token,
            hang_limit=options.engine_hang_timeout,
            prepare=self._texts.prepare,
            on_ready=self._engine_ready,
            on_step=self._observe,
            on_hang=self._supervisor.hung,
            on_progress=self._progress,
        )
        self._metrics.last_step_age.set_function(lambda: self._client.last_step_age)
        self._gateway = Gateway(options, self._client, self._admission, self._metrics, self._texts, tracing=tracing)
        self._http = HttpServer(self._http_config())
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._start_progress = StartProgress(bars=not options.json_output)

    async def run(self) -> int:
        """Serve until a signal, or a failure that a restart of the engine does not mend; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signals.put_nowait, number)
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        client = asyncio.create_task(self._client.run())
        engine = asyncio.create_task(self._supervisor.run())
        signalled = asyncio.create_task(self._signals.get())
        logger.info("listening on %s", self._url)
        await asyncio.wait((http, client, engine, signalled), return_when=asyncio.FIRST_COMPLETED)
        if signalled.done():
            code = await self._stop(signalled.result())
        else:
            self._gateway.alive = False
            code = engine.result() if engine.done() else self._explain(http if http.done() else client)
        await self._end(http)
        client.cancel()
        await self._supervisor.stop(ENGINE_STOP_SECONDS)
        await asyncio.wait((client, engine))
        engine_process.remove_socket(self._socket)
        await self._texts.close()
        return code

    def _explain(self, ended: "asyncio.Task[None]") -> int:
        """Why HTTP or the client ended, which neither does by itself."""
        error = ended.exception()
        if isinstance(error, OSError | ValueError):
            return _fail(f"the model's files cannot be used: {error}", BAD_DATA)
        logger.critical("internal error", exc_info=error)
        return SOFTWARE

    async def _stop(self, number: int) -> int:
        """Let running requests finish within the grace time, unless a second signal comes; the exit code."""
        self._gateway.draining = True
        logger.info("stopping: %d requests are running", self._admission.active)
        idle, again = asyncio.create_task(self._idle()), asyncio.create_task(self._signals.get())
        grace = self._options.graceful_termination_timeout
        await asyncio.wait((idle, again), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            logger.warning("stopping with %d requests cut", self._admission.active)
            self._client.close("the server is shutting down")
        if again.done():
            self._supervisor.kill()
            return 128 + number
        return 0

    async def _idle(self) -> None:
        while self._admission.active:
            await asyncio.sleep(0.02)

    async def _end(self, http: "asyncio.Task[None]") -> None:
        """Close the listener; answers that are still being written get a moment."""
        self._http.should_exit = True
        await asyncio.wait((http,))

    def _http_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            create_app(self._gateway),
            http=TimedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            limit_concurrency=max(1024, CONNECTIONS_PER_REQUEST * self._options.max_concurrent_requests),
            timeout_graceful_shutdown=HTTP_STOP_SECONDS,
            ssl_certfile=self._options.ssl_certfile,
            ssl_keyfile=self._options.ssl_keyfile,
        )

    def _engine_ready(self, description: pb.Description) -> None:
        self._supervisor.ready()
        self._start_progress.close()
        self._metrics.engine_ready(description, self._gateway.max_input_tokens)
        logger.info(
            "ready: %s (%s, %d x %s) on %s after %.1f s",
            *(description.model_id, description.dtype, description.device_count, description.device_kind),
            *(self._url, time.monotonic() - self._began),
        )

    def _restarted(self, cause: Literal["died", "hung"]) -> None:
        self._metrics.engine_restarted(cause)
        self._began = time.monotonic()

    def _observe(self, step: pb.StepEvents) -> None:
        if step.HasField("stats"):
            self._metrics.observe_step(step.stats)
            self._admission.throughput.observe(step.stats)

    def _progress(self, description: pb.Description) -> None:
        if description.state == pb.WARMING:
            self._supervisor.compiling()
        if description.state != pb.READY:
            self._start_progress.show(description.progress)


if __name__ == "__main__":
    main()
