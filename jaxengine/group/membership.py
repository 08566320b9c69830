"""Which process of a group this one is, and how one leaves.

A group lives and dies as one: its caches are split over all of its devices, so without one process the others have
nothing. Each process of it that notices an end ends itself, at once and without JAX's shutdown, which would wait for
the others (100 s for one that is gone, JAX 0.10.2). Launchers start all of them again.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from jaxengine.options.group import GroupOptions
from jaxengine.telemetry import logs

BEAT_SECONDS = 0.5  # between signs of life
FAREWELL_SECONDS = 1.0  # for others to take what a process says before it ends

Leave = Callable[[str, int], NoReturn]


@dataclass(frozen=True)
class Membership:
    """Of one process.

    rank: 0 leads.
    patience: seconds without a sign of another process after which it counts as gone.
    """

    hosts: int
    rank: int
    address: str
    port: int
    key: bytes = field(repr=False)
    patience: float

    @classmethod
    def of(cls, options: GroupOptions, patience: float) -> "Membership | None":
        """None where one machine is enough. Raises ValueError where the key cannot be read."""
        if options.nnodes == 1:
            return None
        options.check_group()
        assert options.master_addr is not None
        key = b""
        if options.group_key_file is not None:
            try:
                key = options.group_key_file.read_bytes().strip()
            except OSError as error:
                raise ValueError(f"--group-key-file {options.group_key_file}: {error.strerror}") from None
            if not key:
                raise ValueError(f"--group-key-file {options.group_key_file} is empty")
        return cls(options.nnodes, options.node_rank, options.master_addr, options.master_port, key, patience)


def leave(reason: str, code: int) -> NoReturn:
    """End this process, from whatever thread and whatever it is waiting for."""
    logs.fail(reason, code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
