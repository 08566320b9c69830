"""What one HTTP process is started with, and the line on which the launcher sends it to a process of its own.

The launcher and its HTTP workers both import this file, so that the launcher need not import the program it starts.
"""

import dataclasses
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from gateway.config.options import Options
from gateway.request.shared_counters import SharedCounters

WORKER_MODULE = "gateway.processes.http_worker"  # the program of a further HTTP process
COUNTERS_FILE = "counters"  # of all processes, in the directory they share


@dataclass(frozen=True)
class WorkerSpec:
    """One of a server's HTTP processes.

    number: 0 is the launcher's own.
    listener: None if another server hands the application its requests; only the launcher's own has none.
    engines: the sockets of the engines.
    token: of this boot.
    shared: directory of the metrics and counters of all processes, if there are several.
    admin: a further listener, for probes and metrics alone.
    grpc: the address at which every process serves gRPC, if they do; the launcher has reserved it.
    """

    number: int
    listener: socket.socket | None
    engines: tuple[Path, ...]
    token: str
    counters: SharedCounters
    shared: Path | None = None
    admin: socket.socket | None = None
    grpc: str | None = None


def to_line(spec: WorkerSpec, options: Options) -> bytes:
    """One line of JSON for a worker's stdin. It holds the API keys, which nobody else can read on a pipe.

    The listener travels as its file descriptor, which the worker inherits.
    """
    assert spec.listener is not None
    fields = {
        "number": spec.number,
        "listener": spec.listener.fileno(),
        "engines": spec.engines,
        "token": spec.token,
        "shared": spec.shared,
        "grpc": spec.grpc,
        "options": dataclasses.asdict(options),
    }
    return json.dumps(fields, default=str).encode() + b"\n"


def from_line(line: bytes) -> tuple[WorkerSpec, Options]:
    """The inverse of `to_line`, in a process that has inherited the listener and maps the shared counters."""
    fields = json.loads(line)
    options, shared = options_from(fields["options"]), Path(fields["shared"])
    number, listener = fields["number"], socket.socket(fileno=fields["listener"])
    file = shared / COUNTERS_FILE
    counters = SharedCounters(
        len(options.keys), replicas=options.replicas, row=number, rows=options.api_workers, file=file
    )
    engines = tuple(map(Path, fields["engines"]))
    return WorkerSpec(number, listener, engines, fields["token"], counters, shared, grpc=fields["grpc"]), options


def options_from(fields: dict[str, Any]) -> Options:
    """Options read from JSON, which has neither tuples nor paths."""
    typed = {}
    for row in dataclasses.fields(Options):
        value = fields[row.name]
        if isinstance(value, list):
            value = tuple(value)
        elif isinstance(value, str) and Path in (row.type, *get_args(row.type)):
            value = Path(value)
        typed[row.name] = value
    return Options(**typed)
