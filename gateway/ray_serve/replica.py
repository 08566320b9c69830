"""One replica: the server in a process, and an event loop, that are Ray's. Signals are Ray's too."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI

from gateway.config.command_line import parse, variable_of
from gateway.config.options import Options
from gateway.http.listener import CannotListen, bind
from gateway.http.rewrites import Mounted
from gateway.launcher import METRICS_VARIABLE
from gateway.parsing.formats import check_parsers
from gateway.processes.devices import replicas_problem
from gateway.processes.engine_process import EngineCommand
from gateway.processes.runtime_directory import runtime_directory
from jaxengine.options.group import GroupOptions
from jaxengine.options.option import UsageError
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger("gateway")

OF_THE_PROXY = ("hostname", "port", "aip_http_port", "grpc_port", "api_workers", "ssl_certfile", "ssl_keyfile", "ngrok")
OF_A_GROUP = tuple(row.name for row in dataclasses.fields(GroupOptions))
OF_THE_DEPLOYMENT = ("num_shard", "sharded", "replicas")  # they say how many GPUs Ray gives, before there is a replica
DECIDED = (*OF_THE_PROXY, *OF_A_GROUP, *OF_THE_DEPLOYMENT)
ADMIN_PORTS = 64  # the replicas on one machine take the first free ones from --admin-port on
LOOK_SECONDS = 0.05  # between looks whether the server is ready
LAST_LINES = 10


class Replica:
    """The server from its start until Serve stops it.

    Args:
        argv: the command line. For other options the environment counts, as it does for the launcher.
        engine: makes an engine's command line.
    """

    def __init__(self, argv: Sequence[str], engine: EngineCommand) -> None:
        rows = (row for row in dataclasses.fields(Options) if row.name in DECIDED)
        decided = {variable_of(row) for row in rows}
        self.options = parse(argv, {name: value for name, value in os.environ.items() if name not in decided})
        check_parsers(self.options)
        if problem := replicas_problem(self.options, os.environ):
            raise UsageError(problem)
        self._engine = engine
        self._lines = EngineLines()
        self._stack = contextlib.ExitStack()
        self._running: asyncio.Task[int] | None = None

    async def start(self) -> FastAPI:
        """The application, once it can serve. Raises RuntimeError with the reason if it never will."""
        options, stack = self.options, self._stack
        logs.configure(options.json_output, options.log_level)
        for line in options.warnings:
            logger.warning(line)
        tracing = stack.enter_context(contextlib.closing(Tracing.to(options.otlp_endpoint, options.otlp_service_name)))
        prefix = Path(f"{options.shard_uds_path}-ray")
        directory = stack.enter_context(runtime_directory(prefix, os.getpid(), options.replicas))
        stack.enter_context(contextlib.closing(self._lines))
        os.environ.pop(METRICS_VARIABLE, None)
        # prometheus_client, which the server imports, reads the variable when it is imported.
        from gateway.processes.server import unheard

        admin, stderr = admin_listener(options), self._lines.pipe
        self._server = unheard(options, os.environ, admin, directory, self._engine, tracing, stderr)
        self._server.app.add_middleware(Mounted)
        self._running = asyncio.create_task(self._server.run_until_stopped())
        while not self._server.gateway.ready and not self._running.done():
            await asyncio.sleep(LOOK_SECONDS)
        if self._running.done():
            stack.close()  # and have the engine's last lines
        self.check()
        return self._server.app

    def check(self) -> None:
        """Raises RuntimeError if the server has ended, or is about to, because restarts of its engines do not help."""
        if self._running is None or self._running.done() or not self._server.gateway.alive:
            raise RuntimeError(f"the server has ended: {self._server.failure or self._lines.reason}")

    async def stop(self) -> None:
        """End the server, also one whose start has failed."""
        if self._running is not None:
            self._server.stop()
            await self._running
        self._stack.close()


def admin_listener(options: Options) -> socket.socket | None:
    """The listener at --admin-port, or at the first port after it that no other replica on this machine has."""
    first = options.admin_port
    if first is None:
        return None
    *others, last = range(first, min(first + ADMIN_PORTS, 1 << 16)) if first else (0,)
    for port in others:
        with contextlib.suppress(CannotListen):
            return bind(options.admin_hostname, port)[0]
    return bind(options.admin_hostname, last)[0]


class EngineLines:
    """What engines write to stderr: passed on to ours, which Ray keeps. The last lines are for Serve's status."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.pipe = os.fdopen(writer, "wb")
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._thread = threading.Thread(target=self._pass_on, args=(reader,), daemon=True)
        self._thread.start()

    @property
    def reason(self) -> str:
        """Why an engine has ended, as far as it said so."""
        lines = [line.strip() for line in self._last]
        return "\n".join([line for line in lines if line.startswith("error: ")] or lines)

    def close(self) -> None:
        """Once the engines have ended: wait for their last lines."""
        self.pipe.close()
        self._thread.join(1.0)

    def _pass_on(self, reader: int) -> None:
        with os.fdopen(reader, errors="replace") as lines:
            for line in lines:
                self._last.append(line)
                sys.stderr.write(line)
