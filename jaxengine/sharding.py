"""One mesh axis, `tp`, and the rule that says which logical axis of an array is split over it.

Attention is split by key/value head, the MLP by its inner width, the vocabulary where it divides evenly; everything
else is replicated. A model whose heads or width cannot be split is refused before anything is loaded.
"""

from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxengine.model.spec import ModelSpec

TP = "tp"
SPLIT = {"kv_heads", "ffn", "vocab"}


def make_mesh(size: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of `size` devices.

    Raises:
        ValueError: fewer devices are visible.
    """
    devices = list(devices if devices is not None else jax.devices())
    if size > len(devices):
        raise ValueError(f"tensor parallelism over {size} devices asked for, {len(devices)} visible")
    return jax.make_mesh((size,), (TP,), axis_types=(AxisType.Auto,), devices=devices[:size])


def check_divisible(spec: ModelSpec, size: int) -> None:
    """Raises ValueError if `spec` cannot be split over `size` devices."""
    for name in ("num_kv_heads", "ffn_size"):
        if getattr(spec, name) % size:
            raise ValueError(f"{name} {getattr(spec, name)} cannot be split over {size} devices")


def partition(mesh: Mesh, shape: Sequence[int], axes: Sequence[str | None]) -> NamedSharding:
    """The sharding of an array whose dimensions are named `axes`. An axis that does not divide evenly is replicated."""
    size = mesh.shape[TP]
    return NamedSharding(
        mesh,
        PartitionSpec(*(TP if axis in SPLIT and n % size == 0 else None for n, axis in zip(shape, axes, strict=True))),
    )


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
