"""One of several HTTP processes of a server, as `gateway.workers` starts it. No entry point for users.

python -m gateway.worker PLACE… -- LAUNCHER_OPTIONS…

It makes its options of the launcher's own command line and environment, listens on a socket it inherited, and obeys:
the first SIGTERM turns new requests away, the second ends what still runs and then the process.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvloop

from gateway.command_line import parse
from gateway.front import Front, Place
from gateway.options import Options
from gateway.tally import Tally
from gateway.text import UnusableModel
from jaxengine.rpc import logs, transport
from jaxengine.rpc.tracing import Tracing

logger = logging.getLogger("gateway")

ORPHANED = 1
TALLY = "tally"  # the file, among the metrics of all


def place_flags(place: Place) -> list[str]:
    """What `main` takes to find its place."""
    given = {
        "number": place.number,
        "listener": place.listener.fileno(),
        "engine": place.engine,
        "shared": place.shared,
    }
    return [f"--{name}={value}" for name, value in given.items()]


def main(argv: list[str]) -> int:
    split = argv.index("--")
    options = parse(argv[split + 1 :], os.environ)
    logs.configure(options.json_output, options.log_level)
    place = _place(argv[:split], options)
    tracing = Tracing.to(options.otlp_endpoint, options.otlp_service_name)
    with contextlib.closing(tracing), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, place, tracing))


def _place(argv: list[str], options: Options) -> Place:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--shared", type=Path, required=True)
    given = parser.parse_args(argv)
    tally = Tally(len(options.keys), row=given.number, rows=options.api_workers, file=given.shared / TALLY)
    token = os.environ.pop(transport.TOKEN_VARIABLE)
    return Place(given.number, socket.socket(fileno=given.listener), given.engine, token, tally, given.shared)


async def _serve(options: Options, place: Place, tracing: Tracing) -> int:
    told: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, told.put_nowait, None)
    loop.add_reader(sys.stdin.fileno(), os._exit, ORPHANED)  # nothing is ever written there: the launcher is gone
    front = Front(options, place, tracing)
    orders = asyncio.create_task(_obey(told, front))
    done, _ = await asyncio.wait((*front.start(), orders), return_when=asyncio.FIRST_COMPLETED)
    await front.stop()
    if orders in done:
        return 0
    error = next(iter(done)).exception()
    if not isinstance(error, UnusableModel):  # of that the launcher tells
        logger.critical("internal error", exc_info=error)
    return os.EX_SOFTWARE


async def _obey(told: "asyncio.Queue[None]", front: Front) -> None:
    await told.get()
    front.drain()
    await told.get()
    front.cut()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
