"""One HTTP process, whole: the application behind a listening socket, its texts, and its session with the engine.

Uvicorn's signal handlers are left out, because they would close the listener first: whoever owns a front says when it
turns new work away (`drain`), ends what still runs (`cut`), and stops.
"""

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from gateway.admin import create_admin_app
from gateway.app import MAX_REQUESTS, create_app
from gateway.config.options import Options
from gateway.engine.client import EngineClient
from gateway.errors import SHUTTING_DOWN
from gateway.http.connections import Connections, connection_limit
from gateway.http.protocol import GuardedProtocol
from gateway.observability.metrics import Metrics
from gateway.request.admission import Admission
from gateway.request.shared_counters import SharedCounters
from gateway.request.state import Gateway
from gateway.text.model_text import Texts
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.telemetry.tracing import Tracing

HTTP_STOP_SECONDS = 2
ADMIN_CONNECTIONS = 256
REQUESTS_PER_PERMIT = 8  # most requests are refused, or ask for no generation


@dataclass(frozen=True)
class WorkerSpec:
    """Where an HTTP process stands among the others.

    number: 0 is the launcher itself.
    engine: the engine's socket.
    token: of this boot.
    shared: directory of the metrics of all, if there are several.
    admin: a further listener, for probes and metrics alone.
    """

    number: int
    listener: socket.socket
    engine: Path
    token: str
    counters: SharedCounters
    shared: Path | None = None
    admin: socket.socket | None = None


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpProcess:
    """Everything that one process needs to speak HTTP.

    Args:
        on_ready: called whenever requests can be sent to the engine, from then on.
        on_hang: called when the engine fell silent.
        on_progress: called when the engine's state or progress line changed.
    """

    def __init__(
        self,
        options: Options,
        spec: WorkerSpec,
        tracing: Tracing,
        *,
        on_ready: Callable[[pb.Description], None] = lambda _: None,
        on_hang: Callable[[], None] = lambda: None,
        on_progress: Callable[[pb.Description], None] = lambda _: None,
    ) -> None:
        self._spec, self._on_ready = spec, on_ready
        self._settled = False  # whether everything that lives as long as the process is there
        self.metrics = Metrics(
            spec.shared,
            counts_steps=spec.number == 0,
            model_name=next(iter(options.served_model_name), ""),
            memory_share=options.cuda_memory_fraction,
        )
        self.admission = Admission(options.max_concurrent_requests, options.max_queued_tokens, spec.counters)
        self._texts = Texts(
            options.validation_workers, options.tokenizer_config_path, payload_limit=options.payload_limit
        )
        self._client = EngineClient(
            spec.engine,
            spec.token,
            hang_limit=options.engine_hang_timeout,
            prepare=self._texts.prepare,
            on_ready=self._engine_ready,
            on_lost=lambda: spec.counters.absent(True),
            on_step=self._observe,
            on_hang=on_hang,
            on_progress=on_progress,
        )
        self.metrics.watch_steps(lambda: self._client.last_step_age)
        secret = spec.token.encode()
        self.gateway = Gateway(
            options, self._client, self.admission, self.metrics, self._texts, tracing=tracing, secret=secret
        )
        connections = connection_limit()
        requests = min(max(MAX_REQUESTS, REQUESTS_PER_PERMIT * options.max_concurrent_requests), connections * 3 // 4)
        self._http = HttpServer(http_config(create_app(self.gateway, requests), Connections(connections), options))
        self._admin: HttpServer | None = None
        if spec.admin is not None:
            self._admin = HttpServer(http_config(create_admin_app(self.gateway), Connections(ADMIN_CONNECTIONS)))

    def start(self) -> tuple["asyncio.Task[None]", "asyncio.Task[None]"]:
        """Begin to serve: the tasks of HTTP and of the engine's client, neither of which ends by itself."""
        self._spec.counters.absent(True)
        self._serving = asyncio.create_task(self._http.serve(sockets=[self._spec.listener]))
        self._talking = asyncio.create_task(self._client.run())
        if self._admin is not None and self._spec.admin is not None:
            self._administering = asyncio.create_task(self._admin.serve(sockets=[self._spec.admin]))
        return self._serving, self._talking

    def drain(self) -> None:
        """Turn new requests away; running ones go on."""
        self.gateway.draining = True

    def cut(self) -> None:
        """End what still runs."""
        self._client.close(SHUTTING_DOWN)

    async def stop(self) -> None:
        """Close the listener; answers that are still being written get a moment."""
        self._http.should_exit = True
        await asyncio.wait((self._serving,))
        if self._admin is not None:
            self._admin.should_exit = True
            await asyncio.wait((self._administering,))
        self._talking.cancel()
        await asyncio.wait((self._talking,))
        await self._texts.close()

    def _engine_ready(self, description: pb.Description) -> None:
        if not self._settled:
            self._settled = True
            # The collector need not walk what lives as long as the process. Without this 49 kB of empty lists in a body
            # held the loop for 98 ms, with it for 9.
            gc.collect()
            gc.freeze()
        self._spec.counters.absent(False)
        self.metrics.engine_ready(description, self.gateway.max_input_tokens)
        self._on_ready(description)

    def _observe(self, step: pb.StepEvents) -> None:
        if step.HasField("stats"):
            self.metrics.observe_step(step.stats)
            self.admission.throughput.observe(step.stats)


def http_config(app: ASGIApp, connections: Connections, tls: Options | None = None) -> uvicorn.Config:
    """Of one listener; with the certificate of `tls`, if that names one."""
    return uvicorn.Config(
        app,
        http=partial(GuardedProtocol, connections=connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=HTTP_STOP_SECONDS,
        ssl_certfile=tls.ssl_certfile if tls else None,
        ssl_keyfile=tls.ssl_keyfile if tls else None,
    )
