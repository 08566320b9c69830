"""The choice of the attention back end, made once at start. A back end that cannot run is refused, never replaced."""

from jaxengine.architecture.latent import Latent
from jaxengine.device import DeviceTraits
from jaxengine.ops import triton

NAMES = ("auto", "reference", "triton")


def choose_backend(
    attention: str,
    device: DeviceTraits,
    head_dim: int,
    group: int,
    dtype: str,
    cache_dtype: str | None = None,
    latent: Latent | None = None,
) -> str:
    """The back end for `--attention`: "auto" is `triton` where the kernels run, and `reference` on a CPU.

    Args:
        head_dim: 0 for a model without attention; its scan has the same back ends, and supports any size.
        group: query heads per key/value head.
        dtype: of the queries.
        cache_dtype: of the cache, if it is another.
        latent: of which keys and values are made.

    Raises:
        ValueError: an unknown name, or a back end that cannot run this model on this device.
    """
    if attention not in NAMES:
        raise ValueError(f"attention must be one of {', '.join(NAMES)}, got {attention!r}")
    if attention == "reference" or (attention == "auto" and not device.kernels):
        return "reference"
    problem = unsupported_device(device, cache_dtype or dtype, "a cache")
    if latent is not None:
        problem = problem or triton.unsupported_latent(latent.rank, latent.rope_dim, dtype)
    elif head_dim:
        problem = problem or triton.unsupported(head_dim, group, dtype)
    if problem:
        raise ValueError(f"attention {attention!r}: {problem}; --attention reference runs everywhere, but slowly")
    return "triton"


def unsupported_device(device: DeviceTraits, dtype: str, what: str) -> str:
    """Why the kernels cannot run on `device` if they read `what` in `dtype`, or ""."""
    if device.capability is None:
        return f"triton needs an NVIDIA GPU, this is {device.kind} ({device.platform})"
    least = triton.E4M3_CAPABILITY if dtype == "float8_e4m3fn" else triton.MIN_CAPABILITY
    if device.capability < least:
        needed, found = (".".join(map(str, each)) for each in (least, device.capability))
        stored = f" with {what} of {dtype}" if least != triton.MIN_CAPABILITY else ""
        return f"triton{stored} needs compute capability {needed} or newer, {device.kind} has {found}"
    return ""
