"""What each of several engines runs on: devices of its own, or processors of its own where there is no GPU.

Two engines on one GPU are slower than one. A model that fits one GPU is served faster by an engine on each than by one
engine that is split over all.
"""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.config.options import Options
from gateway.processes.engine_process import EnginePlace
from gateway.processes.runtime_directory import socket_of
from jaxengine.options.visible_devices import VARIABLE, visible_devices

DEVICE_FILES = Path("/dev")


def replicas_problem(options: Options, environ: Mapping[str, str]) -> str | None:
    """Why `--replicas` cannot be had here, if so."""
    wanted, shards = options.replicas, options.num_shard or 1
    found = len(visible_gpus(environ))
    if wanted == 1 or not found or wanted * shards <= found:
        return None
    each = f"{shards} devices each" if shards > 1 else "a device each"
    return f"--replicas {wanted} with {each} needs {wanted * shards} devices, and {found} are visible"


def places(options: Options, environ: Mapping[str, str], directory: Path) -> list[EnginePlace]:
    """Where each engine is served, and on what it runs. One engine alone may use all that there is."""
    count, shards = options.replicas, options.num_shard or 1
    if count == 1:
        return [EnginePlace(socket_of(directory))]
    gpus = visible_gpus(environ)
    if gpus:
        shares = [",".join(gpus[shards * number : shards * (number + 1)]) for number in range(count)]
        return [EnginePlace(socket_of(directory, number), number, share) for number, share in enumerate(shares)]
    processors = split(sorted(os.sched_getaffinity(0)), count)
    return [EnginePlace(socket_of(directory, number), number, None, share) for number, share in enumerate(processors)]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The names by which CUDA knows the GPUs that an engine would find; none where it would run on the CPU."""
    if environ.get("JAX_PLATFORMS", "").partition(",")[0] == "cpu":
        return []
    if (named := environ.get(VARIABLE)) is not None:
        return list(dict.fromkeys(visible_devices(named)))
    files = [path for path in DEVICE_FILES.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(files))]  # a container may have nvidia5 alone: to CUDA that is 0


def split(processors: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """`processors` in so many parts, as even as can be; all in none where there are too few: then all are shared."""
    if len(processors) < parts:
        return [()] * parts
    bounds = [len(processors) * part // parts for part in range(parts + 1)]
    return [tuple(processors[begin:end]) for begin, end in itertools.pairwise(bounds)]
