"""One of several HTTP processes of a server, as `gateway.processes.http_workers` starts it. No entry point for users.

It reads its place and the launcher's options from a line of its stdin, listens on a socket it inherited, and obeys: the
first SIGTERM turns new requests away, the second ends what still runs and then the process.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, get_args

import uvloop

from gateway.config.options import Options
from gateway.processes.http_process import HttpProcess, WorkerSpec
from gateway.request.shared_counters import SharedCounters
from gateway.text.model_text import UnusableModel
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger("gateway")

ORPHANED = 1
COUNTERS = "counters"  # the file, among the metrics of all


def orders(spec: WorkerSpec, options: Options) -> bytes:
    """The line that `main` reads. On a pipe the keys in it are nobody else's to see."""
    given = {
        "number": spec.number,
        "listener": spec.listener.fileno(),
        "engine": spec.engine,
        "token": spec.token,
        "shared": spec.shared,
        "options": dataclasses.asdict(options),
    }
    return json.dumps(given, default=str).encode() + b"\n"


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:  # the launcher is gone already
        return ORPHANED
    given = json.loads(line)
    options = _options(given.pop("options"))
    logs.configure(options.json_output, options.log_level)
    spec = _spec(options, **given)
    tracing = Tracing.to(options.otlp_endpoint, options.otlp_service_name)
    with contextlib.closing(tracing), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, spec, tracing))


def _options(given: dict[str, Any]) -> Options:
    """What JSON has no types for is typed again."""
    for row in dataclasses.fields(Options):
        value = given[row.name]
        if isinstance(value, list):
            given[row.name] = tuple(value)
        elif isinstance(value, str) and Path in (row.type, *get_args(row.type)):
            given[row.name] = Path(value)
    return Options(**given)


def _spec(options: Options, number: int, listener: int, engine: str, token: str, shared: str) -> WorkerSpec:
    counters = SharedCounters(len(options.keys), row=number, rows=options.api_workers, file=Path(shared) / COUNTERS)
    return WorkerSpec(number, socket.socket(fileno=listener), Path(engine), token, counters, Path(shared))


async def _serve(options: Options, spec: WorkerSpec, tracing: Tracing) -> int:
    told: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, told.put_nowait, None)
    loop.add_reader(sys.stdin.fileno(), os._exit, ORPHANED)  # nothing more is written there: the launcher is gone
    process = HttpProcess(options, spec, tracing)
    orders = asyncio.create_task(_obey(told, process))
    done, _ = await asyncio.wait((*process.start(), orders), return_when=asyncio.FIRST_COMPLETED)
    await process.stop()
    if orders in done:
        return 0
    error = next(iter(done)).exception()
    if not isinstance(error, UnusableModel):  # of that the launcher tells
        logger.critical("internal error", exc_info=error)
    return os.EX_SOFTWARE


async def _obey(told: "asyncio.Queue[None]", process: HttpProcess) -> None:
    await told.get()
    process.drain()
    await told.get()
    process.cut()


if __name__ == "__main__":
    sys.exit(main())
