"""The whole server as a deployment of Ray Serve: `serve run gateway.ray_serve:build model-id=… max-replicas=4`.

A replica is the launcher's server without a port. Its application is called in the replica, so that a stream takes one
hop, from Serve's proxy; its engines are the replica's children. Serve starts replicas, gives them GPUs, asks for their
health and stops them, after as many requests as there are.

Nothing else imports Ray. What Serve's proxy does, such as to listen, is refused as an option here.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import serve
from starlette.types import ASGIApp

from gateway.config import values
from gateway.config.command_line import parse
from gateway.config.options import OF_NGROK, Options
from gateway.http.listener import CannotListen, bind
from gateway.launcher import keep_metrics_in, log_notices
from gateway.parsing.formats import check_parsers
from gateway.processes.devices import replicas_problem
from gateway.processes.engine_process import EngineCommand, command
from gateway.processes.runtime_directory import runtime_directory
from jaxengine.options.option import UsageError, flag, option, read, written
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing

OF_THE_PROXY = ("hostname", "port", "aip_http_port", "grpc_port", "api_workers", "ssl_certfile", "ssl_keyfile")
OF_THE_DEPLOYMENT = ("num_shard", "sharded", "replicas")  # how many GPUs Ray must give: the environment has no say
OF_A_MACHINE = (values.existing_file, values.existing_directory, values.key_file, values.token_file)
STOP_SECONDS = 20.0  # beyond the grace time: Serve looks for idleness every 2 s, engines have 5 s to end
ADMIN_PORTS = 64  # replicas on one machine take the first free one from --admin-port on
LOOK_SECONDS = 0.05  # between looks whether the server is ready
LAST_LINES = 10


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The arguments of `build` that are not the launcher's. A config of Serve says whatever else it may of replicas."""

    num_gpus: float | None = option(None, values.number(0, 1024), "of a replica, 0 for a CPU; --num-shard x --replicas")
    min_replicas: int = option(1, values.whole(0), "fewest replicas, if --max-replicas is given")
    max_replicas: int | None = option(
        None, values.whole(1), "most replicas; as many as Serve's config says if not given"
    )


def build(arguments: dict[str, Any]) -> serve.Application:
    """What `import_path` names. `arguments` are the launcher's options, `model-id` or `model_id`, and those of `Scale`.

    Raises:
        UsageError: an option is unknown or wrong, or is not a replica's. The message is the launcher's.
    """
    return application(arguments)


def application(arguments: Mapping[str, Any], engine: EngineCommand = command) -> serve.Application:
    """Likewise, with the engine process that `engine` gives the command line of."""
    given = {name.replace("-", "_"): value for name, value in arguments.items() if value is not None}
    scale = Scale(
        **{row.name: read(row, row.name, str(given.pop(row.name))) for row in _rows(Scale) if row.name in given}
    )
    for name in (*OF_THE_PROXY, "ngrok", *OF_NGROK):
        if name in given:
            raise UsageError(
                f"{flag(name)} is not a replica's: Ray Serve's proxy listens for all, see its http_options"
            )
    files = {row.name for row in _rows(Options) if row.metadata["parse"] in OF_A_MACHINE}
    options = parse(_argv({name: value for name, value in given.items() if name not in files}), {})
    check_parsers(options)
    return _sized(options, scale).bind(_argv(given), engine)


def _rows(table: type) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(table)


def _argv(given: Mapping[str, Any]) -> list[str]:
    """A command line; YAML's lists are options that are repeated, its mappings JSON."""
    words = []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            text = json.dumps(each) if isinstance(each, Mapping) else written(each)
            words.append(f"{flag(name)}={text}")
    return words


def _sized(options: Options, scale: Scale) -> Any:
    """The deployment as options and arguments size it; a Serve config may still override each of these."""
    from gateway.processes.http_process import request_limit  # not earlier: it imports prometheus_client, see `start`

    if options.sharded and options.num_shard is None:
        raise UsageError("--sharded true takes all devices: under Ray Serve, --num-shard says how many a replica has")
    gpus = (options.num_shard or 1) * options.replicas if scale.num_gpus is None else scale.num_gpus
    sized = serve.deployment(serve.ingress()(TextGeneration)).options(
        health_check_period_s=5,
        health_check_timeout_s=10,
        ray_actor_options={"num_gpus": gpus},
        max_ongoing_requests=2
        * request_limit(options),  # a replica refuses requests itself, with advice when to return
        graceful_shutdown_timeout_s=options.graceful_termination_timeout + STOP_SECONDS,
    )
    if scale.max_replicas is None:
        return sized
    bounds = {"min_replicas": scale.min_replicas, "max_replicas": scale.max_replicas}
    return sized.options(autoscaling_config={**bounds, "target_ongoing_requests": target(options)})


def target(options: Options) -> int:
    """How many requests keep a replica busy: the rows of a step, if they are said, and half of its permits at most."""
    permits = options.max_concurrent_requests
    rows = permits if options.max_batch_size is None else options.max_batch_size * options.replicas
    return max(1, min(rows, permits // 2))


class TextGeneration:
    """What Serve calls in a replica."""

    def __init__(self, argv: list[str], engine: EngineCommand) -> None:
        self.server = ReplicaServer(argv, engine)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Called next. No request comes before it returns."""
        return await self.server.start()

    async def check_health(self) -> None:
        self.server.check()

    async def __del__(self) -> None:
        """Called once no request is running."""
        if hasattr(self, "server"):  # the options may have been refused
            await self.server.stop()


class ReplicaServer:
    """The server in a replica, from its start until Serve stops it. The signals are Ray's."""

    def __init__(self, argv: Sequence[str], engine: EngineCommand) -> None:
        not_ours = {name.upper() for name in (*OF_THE_PROXY, *OF_THE_DEPLOYMENT, "ngrok")}
        self.options = parse(argv, {name: value for name, value in os.environ.items() if name not in not_ours})
        check_parsers(self.options)
        if problem := replicas_problem(self.options, os.environ):
            raise UsageError(problem)
        self._engine = engine
        self._stack = contextlib.ExitStack()

    async def start(self) -> ASGIApp:
        """The application, once it can serve. Raises RuntimeError with the reason if it never will."""
        options, stack = self.options, self._stack
        logs.configure(options.json_output, options.log_level)
        log_notices(options, ())
        tracing = stack.enter_context(contextlib.closing(Tracing.to(options.otlp_endpoint, options.otlp_service_name)))
        prefix = Path(f"{options.shard_uds_path}-ray")
        directory = stack.enter_context(runtime_directory(prefix, os.getpid(), options.replicas))
        self._lines = stack.enter_context(contextlib.closing(EngineLines()))
        keep_metrics_in(None)
        # prometheus_client, which the server imports, reads the variable when it is imported.
        from gateway.processes.server import unheard

        admin, stderr = admin_listener(options), self._lines.pipe
        self._server = unheard(options, os.environ, admin, directory, self._engine, tracing, stderr)
        self._running = asyncio.create_task(self._server.run_until_stopped())
        while not self._server.gateway.ready and not self._running.done():
            await asyncio.sleep(LOOK_SECONDS)
        if self._running.done():
            stack.close()
            self.check()
        return self._server.app

    def check(self) -> None:
        """Raises RuntimeError if the server has ended, or will, because restarts of its engines do not help."""
        if self._running.done() or not self._server.gateway.alive:
            raise RuntimeError(f"the server has ended: {self._server.failure or self._lines.reason}")

    async def stop(self) -> None:
        self._server.stop()
        await self._running
        self._stack.close()


def admin_listener(options: Options) -> socket.socket | None:
    """The listener of --admin-port, at the first port from there on that no other replica on this machine has."""
    first = options.admin_port
    if first is None:
        return None
    *others, last = range(first, min(first + ADMIN_PORTS, 1 << 16)) if first else (0,)
    for port in others:
        with contextlib.suppress(CannotListen):
            return bind(options.admin_hostname, port)[0]
    return bind(options.admin_hostname, last)[0]


class EngineLines:
    """What engines write to stderr: passed on to ours, which Ray keeps; the last lines are for Serve's status."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.pipe = os.fdopen(writer, "wb")
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._thread = threading.Thread(target=self._pass_on, args=(reader,), daemon=True)
        self._thread.start()

    @property
    def reason(self) -> str:
        """Why an engine ended, as far as it said so."""
        lines = [line.strip() for line in self._last]
        return "\n".join([line for line in lines if line.startswith("error: ")] or lines)

    def close(self) -> None:
        self.pipe.close()
        self._thread.join(1.0)

    def _pass_on(self, reader: int) -> None:
        with os.fdopen(reader, errors="replace") as lines:
            for line in lines:
                self._last.append(line)
                sys.stderr.write(line)
