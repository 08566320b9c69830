"""Which attention back end an engine runs, decided once, at start. What cannot run is refused here, not replaced."""

import re
from typing import Protocol

from jaxengine.ops import triton

NAMES = ("auto", "reference", "triton")


class Device(Protocol):
    """A `jax.Device`, as far as the choice looks at it; only GPUs have a `compute_capability`."""

    @property
    def platform(self) -> str: ...
    @property
    def device_kind(self) -> str: ...


def choose(attention: str, device: Device, head_dim: int, group: int, dtype: str) -> str:
    """The back end for `--attention`: "auto" is `triton` on an NVIDIA GPU and `reference` on a CPU.

    Args:
        group: query heads per key/value head.
        dtype: of the cache and the queries.

    Raises:
        ValueError: an unknown name, or a back end that cannot run this model on this device.
    """
    if attention not in NAMES:
        raise ValueError(f"attention must be one of {', '.join(NAMES)}, got {attention!r}")
    if attention == "reference" or (attention == "auto" and device.platform == "cpu"):
        return "reference"
    problem = _no_gpu(device) or triton.unsupported(head_dim, group, dtype)
    if problem:
        raise ValueError(f"attention {attention!r}: {problem}; --attention reference runs everywhere, but slowly")
    return "triton"


def _no_gpu(device: Device) -> str:
    """Why the kernels cannot run on `device`, or ""."""
    capability = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    if capability is None:
        return f"triton needs an NVIDIA GPU, this is {device.device_kind} ({device.platform})"
    version = int(capability[1]), int(capability[2])
    if version < triton.MIN_CAPABILITY:
        least = ".".join(map(str, triton.MIN_CAPABILITY))
        return f"triton needs compute capability {least} or newer, {device.device_kind} has {capability[0]}"
    return ""
