"""What the engine knows of the kind of device it runs on, asked once, at start.

Nothing else compares the names of platforms: whoever decides something by the device reads one trait of it here, so a
new kind of device is a new set of traits. This file imports no JAX.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

Int8Products = Literal["integers", "bf16", "f32"]


class Device(Protocol):
    """A `jax.Device`, as far as this file reads it; only GPUs have a `compute_capability`."""

    @property
    def platform(self) -> str: ...
    @property
    def device_kind(self) -> str: ...


@dataclass(frozen=True)
class DeviceTraits:
    """The traits of one kind of device. The defaults are those of an accelerator.

    platform: JAX's name, "cpu" or "gpu"; compiler options go by it.
    kind: the vendor's name, e.g. "NVIDIA H200".
    capability: the compute capability of an NVIDIA GPU.
    on_host: steps run on the host's own cores. They take CPU time of this process, compiles slow them down, and the
        device has no memory of its own.
    kernels: the Triton kernels are the default back end. A device that is no NVIDIA GPU is refused with them.
    dtype: what "auto" computes in; None is the checkpoint's own type.
    flat_products: every matrix product is computed as rank 2 by rank 2, see `jaxengine/model/linear.py`.
    cache_as_bits: a cache of 8-bit floats is held as integers, see `jaxengine/ops/cache.py`.
    costly_first_run: an executable's first run loads code and records a graph.
    duplicates_shared_work: XLA fuses what several layers read into each of them, unless a condition stands between.
    drops_unwanted: what no one reads of the last layer is left out, which takes a condition in each step with prompts.
    int8_products: how a CPU multiplies by an int8 weight fastest, see `jaxengine/ops/matmul.py`.
    """

    platform: str
    kind: str
    capability: tuple[int, int] | None = None
    on_host: bool = False
    kernels: bool = True
    dtype: str | None = None
    flat_products: bool = False
    cache_as_bits: bool = False
    costly_first_run: bool = True
    duplicates_shared_work: bool = False
    drops_unwanted: bool = False
    int8_products: Int8Products = "f32"

    @property
    def shared_memory(self) -> int:
        """KiB that a program of a product takes at most: all that Hopper has, and an A100, and what others of Ampere
        and Ada have. The large Blackwell has Hopper's, but sums in tensor memory: of that, tiles as large as Hopper's
        took 528 to 640 columns where there are 512 (compiled for a B200, JAX 0.10.2). So it is given an A100's. Source:
        CUDA Programming Guide, Technical Specifications per Compute Capability.
        """
        if self.capability is None or self.capability >= (12, 0):
            return 99
        if self.capability == (8, 0) or self.capability >= (10, 0):
            return 163
        return 227 if self.capability >= (9, 0) else 99

    @classmethod
    def of(cls, device: Device) -> "DeviceTraits":
        """The traits of a device that JAX has found."""
        if device.platform == "cpu":
            return replace(CPU, kind=device.device_kind, int8_products=fastest_int8(cpu_info()))
        found = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
        return cls(device.platform, device.device_kind, (int(found[1]), int(found[2])) if found else None)


INTEGERS = {"avx512_vnni", "avx_vnni", "amx_int8"}
BF16 = {"avx512_bf16", "amx_bf16"}
CPUINFO = Path("/proc/cpuinfo")


def cpu_info() -> dict[str, str]:
    """What Linux tells of the first processor."""
    text = CPUINFO.read_text() if CPUINFO.exists() else ""
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def fastest_int8(info: Mapping[str, str]) -> Int8Products:
    """XLA's products of integers were fastest on Intel's processors, with AMX and without, and slowest on an EPYC that
    has the same instructions.
    """
    flags = set(info.get("flags", "").split())
    if info.get("vendor_id") == "GenuineIntel" and INTEGERS & flags:
        return "integers"
    return "bf16" if BF16 & flags else "f32"


CPU = DeviceTraits(
    platform="cpu",
    kind="cpu",
    on_host=True,
    kernels=False,
    dtype="float32",
    flat_products=True,
    cache_as_bits=True,
    costly_first_run=False,
    duplicates_shared_work=True,
    drops_unwanted=True,
)
