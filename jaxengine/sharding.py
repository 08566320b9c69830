"""One mesh axis, `tp`, and the rule that says which logical axis of an array is split over it.

Attention is split by key/value head, the MLP and every expert by the inner width, a state space by channel or by head.
The vocabulary is split where it divides evenly. Everything else is replicated. A quantised matrix has each of its
arrays split by the same rule (`Parameter.component`). A model whose heads or widths do not divide is refused before
anything is loaded.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxengine.architecture.model import ModelSpec

TP = "tp"
SPLIT = {"kv_heads", "key_heads", "state_heads", "tower_heads", "ffn", "channels", "vocab"}


def make_mesh(size: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of `size` devices.

    Raises:
        ValueError: fewer devices are visible.
    """
    devices = list(devices if devices is not None else jax.devices())
    if size > len(devices):
        raise ValueError(f"tensor parallelism over {size} devices asked for, {len(devices)} visible")
    return jax.make_mesh((size,), (TP,), axis_types=(AxisType.Auto,), devices=devices[:size])


def imaginary_mesh(size: int) -> Mesh:
    """A mesh of devices that need not exist: enough for shapes and shardings, not for arrays."""
    return cast(Mesh, AbstractMesh((size,), (TP,), axis_types=(AxisType.Auto,)))  # `NamedSharding` takes either


def check_divisible(spec: ModelSpec, size: int) -> None:
    """Raises ValueError if `spec` cannot be split over `size` devices."""
    widths = {"num_kv_heads": spec.num_kv_heads, "ffn_size": spec.ffn_size}
    if spec.experts:
        widths |= {"experts.ffn_size": spec.experts.ffn_size, "experts.shared_ffn_size": spec.experts.shared_ffn_size}
    if spec.state_space:
        widths = {"state_space.channels": spec.state_space.channels}
    if spec.traced and size > 1:
        raise ValueError(f"a model that runs as transformers' own module runs on one device, not on {size}")
    of_kinds = ((f"a layer's {name}", getattr(kind, name)) for kind in spec.kinds for name in ("kv_heads", "ffn_size"))
    for name, width in (*widths.items(), *of_kinds):
        if width % size:
            raise ValueError(f"{name} {width} cannot be split over {size} devices")


def partition(mesh: Mesh, shape: Sequence[int], axes: Sequence[str | None]) -> NamedSharding:
    """The sharding of an array whose dimensions are named `axes`. An axis that does not divide evenly is replicated."""
    size = mesh.shape[TP]
    return NamedSharding(
        mesh,
        PartitionSpec(*(TP if axis in SPLIT and n % size == 0 else None for n, axis in zip(shape, axes, strict=True))),
    )


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_device(function: Callable[..., Any], mesh: Mesh | None, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function`, run by each device of `mesh` on its part of the arrays; without a mesh as it is."""
    if mesh is None:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
