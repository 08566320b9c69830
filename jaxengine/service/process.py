"""An engine as a process: it opens its socket, loads the model, and steps until it is told to stop.

The function that loads the model is a parameter, so that everything about the process (who may call it, how it dies,
with which exit code) is tested without a model. Exit codes are those of sysexits.h; a failure is one line on stderr.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from jaxengine.request.interface import COMPILING, DrivenEngine
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.engine_pb2_grpc import add_EngineServicer_to_server
from jaxengine.service.adapter_record import AdapterRecord
from jaxengine.service.daemon_thread import in_daemon_thread
from jaxengine.service.service import Service
from jaxengine.telemetry.logs import USAGE, fail
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0  # given to the running step to end, and then to the socket to send what is queued


class StartupError(Exception):
    """The engine cannot start. The message is one line, for the operator."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code


@dataclass(frozen=True)
class Loaded:
    """An engine that is ready to step, and the directory of its tokenizer and configuration files.

    record: where its adapters are noted.
    """

    engine: DrivenEngine
    directory: Path
    record: AdapterRecord | None = None


Progress = Callable[[str], None]
Loader = Callable[[Progress], Loaded]


def run(path: Path, token: str, load: Loader, *, drain_seconds: float, tracing: Tracing | None = None) -> int:
    """Serve on the socket `path` until SIGTERM, then give running requests `drain_seconds`. Returns the exit code."""
    faulthandler.enable()  # on SIGABRT, which a supervisor sends to a stuck engine, it prints every thread's stack
    try:
        guard = transport.TokenGuard(token)
        transport.prepare_socket(path)
    except ValueError as error:
        return fail(str(error), USAGE)
    except OSError as error:
        return fail(f"cannot make the socket directory {path.parent}: {error.strerror}", os.EX_CANTCREAT)
    tracing = tracing or Tracing()
    code = asyncio.run(_serve(path, guard, load, drain_seconds, tracing))
    tracing.close()
    if threading.active_count() > 1:
        # A thread inside the compiler or a step cannot be stopped, and the interpreter would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


async def _serve(path: Path, guard: transport.TokenGuard, load: Loader, drain_seconds: float, tracing: Tracing) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    service = Service(pb.Description(state=pb.STARTING, progress="starting"), crashed, tracing)
    server = grpc.aio.server(interceptors=(guard,), options=transport.CHANNEL_OPTIONS)
    add_EngineServicer_to_server(service, server)
    server.add_insecure_port(transport.address(path))
    await server.start()
    try:
        return await _live(service, load, stopping, crashed, drain_seconds)
    finally:
        await server.stop(STOP_SECONDS)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others' files in the directory keep it
            path.parent.rmdir()


async def _live(
    service: Service, load: Loader, stopping: asyncio.Event, crashed: asyncio.Future[None], drain_seconds: float
) -> int:
    stop = asyncio.create_task(stopping.wait())
    loading = _start_loading(load, service.description)
    await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        return 0
    try:
        loaded = loading.result()
    except StartupError as error:
        return fail(str(error), error.exit_code)
    except Exception:
        logger.critical("the engine could not start", exc_info=True)
        return fail("the engine could not start: internal error", os.EX_SOFTWARE)
    _announce(service, loaded)
    await asyncio.wait((stop, crashed), return_when=asyncio.FIRST_COMPLETED)
    if crashed.done():
        service.stop(0)
        return fail(str(crashed.exception()), os.EX_SOFTWARE)
    finished = await service.drain(drain_seconds)
    service.stop(STOP_SECONDS)
    if not finished:
        logger.warning("stopped with requests running after %g s", drain_seconds)
    return 0


def _announce(service: Service, loaded: Loaded) -> None:
    service.description.model_dir = str(loaded.directory)
    gc.collect()
    gc.freeze()  # objects made while loading live as long as the process: the collector need not walk them
    service.serve(loaded.engine, loaded.record)


def _start_loading(load: Loader, description: pb.Description) -> "asyncio.Future[Loaded]":
    event_loop = asyncio.get_running_loop()

    def progress(line: str) -> None:
        event_loop.call_soon_threadsafe(_progress, description, line)

    return in_daemon_thread("load", lambda: load(progress))


def _progress(description: pb.Description, line: str) -> None:
    description.state = pb.WARMING if line.startswith(COMPILING) else pb.STARTING
    description.progress = line.encode(errors="replace").decode()  # a path may have bytes that are no text
