"""`text-generation-launcher`: one command from options to a served model.

The order matters. The port is bound before anything slow. Then the engine process is started and watched while HTTP
already answers, in this process and, with `--api-workers`, in further ones.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from gateway.config.command_line import parse
from gateway.config.environment import environment_report
from gateway.config.options import Options
from gateway.http.listener import CannotListen, bind, is_loopback, reserve, tls_problem
from gateway.parsing.formats import check_parsers
from gateway.processes import signals
from gateway.processes.devices import replicas_problem
from gateway.processes.engine_process import EngineCommand, command
from gateway.processes.following_server import FollowingServer
from gateway.processes.runtime_directory import runtime_directory
from gateway.processes.tunnel import ngrok_problem
from jaxengine.options.option import UsageError
from jaxengine.telemetry import logs, standard_streams
from jaxengine.telemetry.tracing import Tracing, TracingUnavailable

logger = logging.getLogger("gateway")

OPEN = (
    "whoever reaches %s port %d may use this server: set API_KEY or --api-key-file to ask for a key, "
    "or --hostname 127.0.0.1 to listen on this machine only"
)
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def main() -> None:
    standard_streams.hold()
    sys.exit(launch(sys.argv[1:], os.environ))


def launch(argv: Sequence[str], environ: Mapping[str, str], engine: EngineCommand = command) -> int:
    """Run the server, with the engine process that `engine` gives the command line of; the exit code.

    If the server cannot start, the reason is one line on stderr.
    """
    with signals.blocked():
        return _launch(argv, environ, engine)


def _launch(argv: Sequence[str], environ: Mapping[str, str], engine: EngineCommand) -> int:
    began = time.monotonic()
    try:
        options = parse(argv, environ)
        check_parsers(options)
    except UsageError as error:
        return logs.fail(str(error), logs.USAGE)
    if problem := tls_problem(options) or ngrok_problem(options) or replicas_problem(options, environ):
        return logs.fail(problem, logs.USAGE)
    if options.follows:
        return _follow(options, environ, engine, began)
    try:
        listeners = bind(options.hostname, options.port, options.api_workers)
        admin = None if options.admin_port is None else bind(options.admin_hostname, options.admin_port)[0]
        reserved = None if options.grpc_port is None else reserve(options.hostname, options.grpc_port)
    except CannotListen as error:
        return logs.fail(str(error), os.EX_OSERR)
    logs.configure(options.json_output, options.log_level)
    _log_notices(options, [listeners[0], *([reserved] if reserved else [])])
    try:
        tracing = Tracing.to(options.otlp_endpoint, options.otlp_service_name)
    except TracingUnavailable as error:
        return logs.fail(str(error), logs.USAGE)

    def run(directory: Path) -> Coroutine[Any, Any, int]:
        _keep_metrics_in(directory if options.api_workers > 1 else None)
        # prometheus_client, which `serve` imports, reads the variable when it is imported.
        from gateway.processes.server import serve

        return serve(options, environ, listeners, admin, reserved, directory, engine, began, tracing)

    with contextlib.closing(tracing):
        return _in_directory(options.shard_uds_path, listeners[0].getsockname()[1], options.replicas, run)


def _follow(options: Options, environ: Mapping[str, str], engine: EngineCommand, began: float) -> int:
    """Run an engine that follows that of another machine, and no server; the exit code."""
    logs.configure(options.json_output, options.log_level)
    logger.info("machine %d of %d, which follows %s", options.node_rank, options.nnodes, options.master_addr)

    def run(directory: Path) -> Coroutine[Any, Any, int]:
        return FollowingServer(options, environ, directory, engine, began).run()

    return _in_directory(options.shard_uds_path, f"{options.master_port}-{options.node_rank}", 1, run)


def _in_directory(prefix: Path, name: int | str, engines: int, run: Callable[[Path], Coroutine[Any, Any, int]]) -> int:
    """`run` with the runtime directory of this name, on an event loop; its exit code, or that of a directory that
    cannot be had.
    """
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(runtime_directory(prefix, name, engines))
        except ValueError as error:
            return logs.fail(str(error), logs.USAGE)
        except OSError as error:
            return logs.fail(f"cannot make the directory {prefix}-{name}: {error.strerror}", os.EX_CANTCREAT)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(directory))


def _log_notices(options: Options, ports: Sequence[socket.socket]) -> None:
    """Log what the operator should know before the start. `ports` are those on which texts are generated."""
    for line in options.warnings:
        logger.warning(line)
    for each in ports:
        if not options.keys and not is_loopback(each):
            logger.warning(OPEN, *each.getsockname()[:2])
    if options.env:
        logger.info("%s", environment_report())


def _keep_metrics_in(directory: Path | None) -> None:
    """Have prometheus_client keep metrics in files of `directory`, for several processes, or in memory if None."""
    os.environ.pop(METRICS_VARIABLE, None)  # set for another program
    if directory is not None:
        os.environ[METRICS_VARIABLE] = str(directory)


if __name__ == "__main__":
    main()
