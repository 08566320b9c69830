"""The program of one further HTTP process, as `gateway.processes.http_workers` starts it. No entry point for users.

The worker reads its spec and the launcher's options from the first line of its stdin and listens on a socket it
inherited. The first SIGTERM turns new requests away, the second ends running requests and then the process.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys

import uvloop

from gateway.config.options import Options
from gateway.processes.http_process import HttpProcess
from gateway.processes.worker_spec import WorkerSpec, from_line
from gateway.text.loader import UnusableModel
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing

logger = logging.getLogger("gateway")

ORPHANED = 1


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:  # the launcher is gone already
        return ORPHANED
    spec, options = from_line(line)
    logs.configure(options.json_output, options.log_level)
    tracing = Tracing.to(options.otlp_endpoint, options.otlp_service_name)
    with contextlib.closing(tracing), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, spec, tracing))


async def _serve(options: Options, spec: WorkerSpec, tracing: Tracing) -> int:
    """Serve until the second SIGTERM, or until HTTP or the engine's client fails; the exit code."""
    sigterms: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, sigterms.put_nowait, None)
    loop.add_reader(sys.stdin.fileno(), os._exit, ORPHANED)  # nothing follows the first line: stdin was closed
    process = HttpProcess(options, spec, tracing)
    stopping = asyncio.create_task(_stop(sigterms, process))
    done, _ = await asyncio.wait((*process.start(), stopping), return_when=asyncio.FIRST_COMPLETED)
    await process.stop()
    if stopping in done:
        return 0
    error = next(iter(done)).exception()
    if not isinstance(error, UnusableModel):  # the launcher's own HTTP process reports that one
        logger.critical("internal error", exc_info=error)
    return os.EX_SOFTWARE


async def _stop(sigterms: "asyncio.Queue[None]", process: HttpProcess) -> None:
    await sigterms.get()
    process.drain()
    await sigterms.get()
    process.abort_requests()


if __name__ == "__main__":
    sys.exit(main())
