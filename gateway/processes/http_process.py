"""One HTTP process, whole: the application behind a listening socket, gRPC, its texts, and its session with the engine.

Without a socket of its own the application is for another server to call, which takes its requests as it likes.

Uvicorn's signal handlers are left out, because they would close the listener first. The owner of an `HttpProcess` ends
it in three steps instead: turn new requests away (`drain`), end the running ones (`abort_requests`), `stop`.
"""

import asyncio
import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from gateway.admin import create_admin_app
from gateway.app import MAX_REQUESTS, create_app
from gateway.config.options import Options
from gateway.engine.listener import EngineListener
from gateway.engine.replicas import Replicas
from gateway.errors import SHUTTING_DOWN
from gateway.grpc.server import GrpcServer
from gateway.http.connections import Connections, connection_limit
from gateway.http.h11_protocol import GuardedProtocol
from gateway.observability.metrics import Metrics
from gateway.processes.worker_spec import WorkerSpec
from gateway.request.admission import Admission
from gateway.request.gateway_state import Gateway
from gateway.text.loader import ModelTextLoader
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger("gateway")

HTTP_STOP_SECONDS = 2
ADMIN_CONNECTIONS = 256
REQUESTS_PER_PERMIT = 8  # most requests are refused, or ask for no generation


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpProcess(EngineListener):
    """Everything that one process needs to speak HTTP.

    Args:
        listeners: told what becomes of the engine, after this process has taken note.
    """

    def __init__(
        self, options: Options, spec: WorkerSpec, tracing: Tracing, listeners: Sequence[EngineListener] = ()
    ) -> None:
        self._spec = spec
        self._sampling: asyncio.Task[None] | None = None
        self._frozen = False  # whether the garbage collector ignores what lives as long as the process
        self.metrics = Metrics(
            spec.shared,
            counts_steps=spec.number == 0,
            model_name=next(iter(options.served_model_name), ""),
            memory_share=options.cuda_memory_fraction,
            step_age=lambda engine: self._replicas.last_step_age(engine),
        )
        self.admission = Admission(options.max_concurrent_requests, options.max_queued_tokens, spec.counters)
        self._text_loader = ModelTextLoader(
            options.validation_workers, options.tokenizer_config_path, payload_limit=options.payload_limit
        )
        self._replicas = Replicas(
            spec.engines,
            spec.token,
            resume=options.resume_requests,
            turn=spec.counters.turn,
            hang_limit=options.engine_hang_timeout,
            prepare=self._prepare,
            listeners=(self, *listeners),
            routes=self.metrics,
        )
        secret = spec.token.encode()
        self.gateway = Gateway(
            options,
            self._replicas,
            self.admission,
            self.metrics,
            self._text_loader,
            tracing=tracing,
            secret=secret,
            shared=spec.shared,
        )
        connections = connection_limit()
        requests = min(request_limit(options), connections * 3 // 4)
        self.app = create_app(self.gateway, requests)
        self._http: HttpServer | None = None
        if spec.listener is not None:
            self._http = HttpServer(http_config(self.app, Connections(connections), options))
        self._admin: HttpServer | None = None
        if spec.admin is not None:
            self._admin = HttpServer(admin_config(create_admin_app(self.gateway)))
        self._grpc = None if spec.grpc is None else GrpcServer(self.gateway, spec.grpc, requests)

    def start(self) -> list["asyncio.Task[None]"]:
        """Begin to serve. Returns the tasks of HTTP, of the engines' clients and of gRPC: one that ends has failed."""
        self._spec.counters.set_ready(False)
        self._talking = asyncio.create_task(self._replicas.run())
        parts = [self._talking]
        if not self.gateway.options.disable_ui:
            self._sampling = asyncio.create_task(self.gateway.feed.run())
        if self._http is not None and self._spec.listener is not None:
            self._serving = asyncio.create_task(self._http.serve(sockets=[self._spec.listener]))
            parts.append(self._serving)
        if self._admin is not None and self._spec.admin is not None:
            self._administering = asyncio.create_task(self._admin.serve(sockets=[self._spec.admin]))
        if self._grpc is not None:
            parts.append(asyncio.create_task(self._grpc.serve()))
        return parts

    def drain(self) -> None:
        """Turn new requests away; running requests go on, but those that only watch."""
        self.gateway.draining = True
        self.gateway.feed.close()

    def abort_requests(self) -> None:
        """End what still runs, with an error that says why."""
        self._replicas.close(SHUTTING_DOWN)

    async def stop(self) -> None:
        """Close the listeners, after at most `HTTP_STOP_SECONDS` for answers that are still being written."""
        self.gateway.feed.close()
        if self._sampling is not None:
            self._sampling.cancel()
        if self._http is not None:
            self._http.should_exit = True
        if self._grpc is not None:
            await self._grpc.stop(HTTP_STOP_SECONDS)
        if self._http is not None:
            await asyncio.wait((self._serving,))
        if self._admin is not None:
            self._admin.should_exit = True
            await asyncio.wait((self._administering,))
        self._talking.cancel()
        await asyncio.wait((self._talking,))
        await self.gateway.close()

    async def _prepare(self, description: pb.Description) -> None:
        await self.gateway.prepare(description)

    def engine_ready(self, engine: int, description: pb.Description) -> None:
        if not self._frozen:
            self._frozen = True
            # The collector need not walk what lives as long as the process. Without `freeze`, 49 kB of empty lists in a
            # body held the event loop for 98 ms; with it, for 9 ms.
            gc.collect()
            gc.freeze()
            self._log_formats()
        self._spec.counters.set_ready(self._replicas.ready)
        self._spec.counters.set_reached(engine, True)
        self.metrics.engine_ready(engine, description, self.gateway.max_input_tokens)

    def _log_formats(self) -> None:
        model = self.gateway.text_loader.current
        if self._spec.number == 0 and model is not None:
            names = self.gateway.formats(model).names
            logger.info("calls of tools are read as %s, reasoning as %s", *names.values())

    def engine_step(self, engine: int, step: pb.StepEvents) -> None:
        if step.HasField("stats"):
            self.metrics.observe_step(engine, step.stats)
            self.admission.throughput.observe(engine, step.stats)
        self._spec.counters.set_ready(self._replicas.ready)

    def engine_lost(self, engine: int) -> None:
        self.metrics.engine_lost(engine)
        self.admission.throughput.lost(engine)
        self._spec.counters.set_ready(self._replicas.ready)
        self._spec.counters.set_reached(engine, False)


def request_limit(options: Options) -> int:
    """How many requests may be at work at once, most of which generate nothing."""
    return max(MAX_REQUESTS, REQUESTS_PER_PERMIT * options.max_concurrent_requests)


def admin_config(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn serves the admin listener: a client's address decides there, so no header may change it."""
    config = http_config(app, Connections(ADMIN_CONNECTIONS))
    config.proxy_headers = False
    return config


def http_config(app: ASGIApp, connections: Connections, tls: Options | None = None) -> uvicorn.Config:
    """How uvicorn serves `app` on one listener: over TLS if `tls` names a certificate."""
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
