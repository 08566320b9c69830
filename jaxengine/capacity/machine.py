"""What a plan is made for: GPUs that are alike, here or elsewhere, or a host's processors and memory."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from jaxengine.capacity.gpus import GPUS, Gpu, find
from jaxengine.device import CPU
from jaxengine.options.visible_devices import VARIABLE, visible_devices
from jaxengine.sharding import imaginary_mesh
from jaxengine.startup.host import host_memory
from jaxengine.startup.memory import RESERVED_BYTES
from jaxengine.startup.place import Place

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,compute_cap,uuid", "--format=csv,noheader,nounits")
MIB = 1 << 20
MOST = 64  # GPUs


@dataclass(frozen=True)
class Machine:
    """`gpu` is None for a host. `memory` is of each device, in bytes, and `usable` what an engine may take of it."""

    gpu: Gpu | None
    count: int
    memory: int
    usable: int

    @classmethod
    def of(cls, gpu: Gpu | None, count: int, fraction: float) -> "Machine":
        """`fraction` is the share of a GPU's memory that an engine may use; of a host's it may use all."""
        if gpu is None:
            memory = host_memory()
            return cls(None, 1, memory, memory)
        return cls(gpu, count, gpu.memory, int(gpu.memory * fraction))

    @property
    def name(self) -> str:
        return f"{self.count} x {self.gpu.name}" if self.gpu else f"this machine's processors, {os.cpu_count()}"

    @property
    def driver(self) -> int:
        """Bytes of each device that are left to the driver."""
        return RESERVED_BYTES if self.gpu else 0

    def place(self, devices: int) -> Place:
        """`devices` of it."""
        return Place(imaginary_mesh(devices), self.gpu.traits if self.gpu else CPU, self.usable)


def named(text: str) -> tuple[Gpu | None, int]:
    """The GPU and the number that `--devices` means; no GPU for `cpu`.

    Raises:
        ValueError: an unknown GPU, or a number of GPUs that no machine has.
    """
    if text.strip().lower() == "cpu":
        return None, 1
    if whole := find(text):
        return whole, 1
    found = re.fullmatch(r"(\d+)\s*[x*]\s*(.+)|(.+?)\s*[x*:]\s*(\d+)", text.strip(), re.IGNORECASE)
    gpu = find(found[2] or found[3]) if found else None
    if found is None or gpu is None:
        raise ValueError(f"must be cpu, or a GPU as in h200x8, one of {', '.join(GPUS)}")
    count = int(found[1] or found[4])
    if not 1 <= count <= MOST:
        raise ValueError(f"must be 1 to {MOST} of a GPU")
    return gpu, count


def here() -> tuple[Gpu | None, int]:
    """This machine's GPUs, as its driver tells them and CUDA_VISIBLE_DEVICES leaves them; no GPU if there is none.

    Raises:
        ValueError: they are not alike, or CUDA_VISIBLE_DEVICES names what the driver does not list, as parts of GPUs;
            or the driver does not tell of one that is not known, as of those that share the processor's memory.
    """
    try:
        told = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None, 1
    found = [line.split(", ") for line in told.splitlines() if line.count(", ") == 3]
    gpus = {uuid: (name, memory, capability) for name, memory, capability, uuid in found}
    rows = [gpus[uuid] for uuid in _visible([*gpus])]
    if not rows:
        return None, 1
    if len(set(rows)) > 1:
        raise ValueError(f"this machine's GPUs differ ({', '.join(row[0] for row in rows)}): name those to plan for")
    return _known(*rows[0]), len(rows)


def _visible(uuids: Sequence[str]) -> list[str]:
    """Those of the driver's GPUs that CUDA_VISIBLE_DEVICES names: by number, or by the beginning of a UUID."""
    asked = os.environ.get(VARIABLE)
    return [*uuids] if asked is None else [_uuid(name, uuids) for name in visible_devices(asked)]


def _uuid(name: str, uuids: Sequence[str]) -> str:
    number = int(name) if name.isdecimal() else len(uuids)
    found = uuids[number : number + 1] or [uuid for uuid in uuids if uuid.startswith(name)]
    if len(found) != 1:
        raise ValueError(f"{VARIABLE} names {name!r}, which is none of this machine's GPUs: name their kind")
    return found[0]


def _known(name: str, mebibytes: str, capability: str) -> Gpu:
    """The GPU of that name; one that is not known has no speeds."""
    if gpu := find(name):
        return gpu
    major, _, minor = capability.partition(".")
    try:
        return Gpu(name, (int(major), int(minor or 0)), 0, int(float(mebibytes)) * MIB)
    except ValueError:
        told = f"memory {mebibytes}, compute capability {capability}"
        raise ValueError(f"of this machine's {name} the driver tells {told}: name a kind to plan for") from None
