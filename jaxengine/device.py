"""What the engine knows of the kind of device it runs on, asked once, at start.

Nothing else compares the names of platforms: whoever decides something by the device reads one trait of it here, so a
new kind of device is a new set of traits. This file imports no JAX.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol


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
    input_major: wide matrices are stored `[in…, out…]`, see `jaxengine/model/linear.py`.
    flat_products: every matrix product is computed as rank 2 by rank 2, see there too.
    cache_as_bits: a cache of 8-bit floats is held as integers, see `jaxengine/ops/cache.py`.
    costly_first_run: an executable's first run loads code and records a graph.
    duplicates_shared_work: XLA fuses what several layers read into each of them, unless a condition stands between.
    multiplies_bf16: a CPU has instructions for products of bf16.
    """

    platform: str
    kind: str
    capability: tuple[int, int] | None = None
    on_host: bool = False
    kernels: bool = True
    dtype: str | None = None
    input_major: bool = False
    flat_products: bool = False
    cache_as_bits: bool = False
    costly_first_run: bool = True
    duplicates_shared_work: bool = False
    multiplies_bf16: bool = False

    @property
    def much_shared_memory(self) -> bool:
        """Whether a program may take 160 KB: on an A100 and from Hopper on. Others of Ampere and Ada have 99."""
        return self.capability is not None and (self.capability == (8, 0) or (9, 0) <= self.capability < (12, 0))

    @classmethod
    def of(cls, device: Device) -> "DeviceTraits":
        """The traits of a device that JAX has found."""
        if device.platform == "cpu":
            return replace(CPU, kind=device.device_kind, multiplies_bf16=bool(BF16 & cpu_flags()))
        found = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
        return cls(device.platform, device.device_kind, (int(found[1]), int(found[2])) if found else None)


BF16 = {"avx512_bf16", "amx_bf16"}
CPUINFO = Path("/proc/cpuinfo")


def cpu_flags() -> set[str]:
    """What an x86 processor can do, as Linux has it."""
    found = re.search(r"^flags\s*:(.*)$", CPUINFO.read_text() if CPUINFO.exists() else "", re.MULTILINE)
    return set(found[1].split()) if found else set()


CPU = DeviceTraits(
    platform="cpu",
    kind="cpu",
    on_host=True,
    kernels=False,
    dtype="float32",
    input_major=True,
    flat_products=True,
    cache_as_bits=True,
    costly_first_run=False,
    duplicates_shared_work=True,
)
