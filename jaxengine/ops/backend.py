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


def choose_backend(
    attention: str, device: Device, head_dim: int, group: int, dtype: str, cache_dtype: str | None = None
) -> str:
    """The back end for `--attention`: "auto" is `triton` on an NVIDIA GPU and `reference` on a CPU.

    Args:
        head_dim: 0 for a model without attention: its scan has a back end likewise, and takes any size.
        group: query heads per key/value head.
        dtype: of the queries.
        cache_dtype: of the cache, if it is another.

    Raises:
        ValueError: an unknown name, or a back end that cannot run this model on this device.
    """
    if attention not in NAMES:
        raise ValueError(f"attention must be one of {', '.join(NAMES)}, got {attention!r}")
    if attention == "reference" or (attention == "auto" and device.platform == "cpu"):
        return "reference"
    problem = unsupported_device(device, cache_dtype or dtype, "a cache")
    problem = problem or (triton.unsupported(head_dim, group, dtype) if head_dim else "")
    if problem:
        raise ValueError(f"attention {attention!r}: {problem}; --attention reference runs everywhere, but slowly")
    return "triton"


def unsupported_device(device: Device, dtype: str, what: str) -> str:
    """Why the kernels cannot run on `device` if they read `what` in `dtype`, or ""."""
    capability = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    if capability is None:
        return f"triton needs an NVIDIA GPU, this is {device.device_kind} ({device.platform})"
    least = triton.E4M3_CAPABILITY if dtype == "float8_e4m3fn" else triton.MIN_CAPABILITY
    if (int(capability[1]), int(capability[2])) < least:
        needed = ".".join(map(str, least))
        stored = f" with {what} of {dtype}" if least != triton.MIN_CAPABILITY else ""
        return f"triton{stored} needs compute capability {needed} or newer, {device.device_kind} has {capability[0]}"
    return ""
