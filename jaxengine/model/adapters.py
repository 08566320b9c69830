"""The stacks of adapters on the devices, and one adapter laid out as a slot of them (see `ops/adapters.py`)."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.architecture.adaptation import Adaptable, AdapterShapes, AdapterWeights, LoadedAdapter, LowRank
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, parameter_table
from jaxengine.device import DeviceTraits
from jaxengine.ops.adapters import AdapterStack
from jaxengine.sharding import partition

ON_THEIR_WAY = 2  # adapters, at most: one of a step that is launched, and one of the step before it


def abstract_adapters(
    spec: ModelSpec, shapes: AdapterShapes | None, mesh: Mesh, device: DeviceTraits
) -> dict[str, AdapterStack]:
    """Every stack as the devices will hold it, without data, by the name of its matrix.

    Inputs and outputs are split over devices as the matrix's are.
    """
    if shapes is None:
        return {}
    table = parameter_table(spec)
    stack = partial(_abstract, shapes, mesh, device)
    return {name: stack(name, table[name], adaptable) for name, adaptable in shapes.targets.items()}


def _abstract(
    shapes: AdapterShapes, mesh: Mesh, device: DeviceTraits, name: str, parameter: Parameter, adaptable: Adaptable
) -> AdapterStack:
    outputs = len(parameter.shape) - parameter.inputs
    kept = [axis for axis in range(outputs) if axis != adaptable.axis]

    def array(sizes: tuple[int, ...], axes: list[int]) -> Any:
        shape = (*sizes, *(parameter.shape[axis] for axis in axes))
        names = [*(None for _ in sizes), *(parameter.axes[axis] for axis in axes)]
        return jax.ShapeDtypeStruct(shape, jnp.dtype(shapes.dtype), sharding=partition(mesh, shape, names))

    a = array((shapes.slots, adaptable.modules * shapes.rank), list(range(outputs, len(parameter.shape))))
    b = array((len(adaptable.parts), shapes.slots, shapes.rank), kept)
    return AdapterStack(a, b, name, adaptable, device.flat_products)


def one_slot(stack: AdapterStack) -> tuple[Any, Any]:
    """The shapes of one slot's a [M·R, in…] and b [U, R, out…], split as the stack's."""

    def without(shape: Any, axis: int) -> Any:
        sizes, split = list(shape.shape), list(shape.sharding.spec)
        del sizes[axis], split[axis]
        sharding = NamedSharding(shape.sharding.mesh, PartitionSpec(*split))
        return jax.ShapeDtypeStruct(sizes, shape.dtype, sharding=sharding)

    return without(stack.a, 0), without(stack.b, 1)


def loaded(adapter: AdapterWeights, stacks: Mapping[str, AdapterStack], shapes: AdapterShapes) -> LoadedAdapter:
    """`adapter` as one slot of the abstract `stacks`. Raises ValueError where it does not fit."""
    if adapter.rank > shapes.rank:
        raise ValueError(f"rank {adapter.rank} is more than max_lora_rank {shapes.rank}")
    if homeless := sorted(adapter.matrices.keys() - stacks.keys()):
        raise ValueError(
            f"it changes {homeless[0]}, which no adapter named at start does: the server keeps room for that only with "
            "--enable-lora"
        )
    arrays = {name: _laid_out(matrix, stacks[name]) for name, matrix in adapter.matrices.items()}
    for name, pair in arrays.items():
        if not all(np.isfinite(each.astype(np.float32)).all() for each in pair):
            raise ValueError(f"a number of {name} is more than lora_dtype {shapes.dtype} can hold")
    return LoadedAdapter(adapter.digest, arrays)


def _laid_out(matrix: LowRank, stack: AdapterStack) -> tuple[np.ndarray, np.ndarray]:
    slot_a, slot_b = one_slot(stack)
    a, b = np.zeros(slot_a.shape, slot_a.dtype), np.zeros(slot_b.shape, slot_b.dtype)
    modules, rank, inputs = matrix.a.shape
    axis = stack.adaptable.axis
    by_unit = matrix.b[None] if axis is None else np.moveaxis(matrix.b, axis, 0)  # [U, out…, rank]
    with np.errstate(over="ignore"):
        a.reshape(modules, -1, inputs)[:, :rank] = matrix.a
        b[:, :rank] = np.moveaxis(by_unit, -1, 1)
    return a, b


def held_bytes(stacks: Mapping[str, AdapterStack]) -> int:
    """The bytes of abstract stacks on each device, and of the adapters that are on their way into them."""
    arrays = [array for stack in stacks.values() for array in (stack.a, stack.b, *ON_THEIR_WAY * one_slot(stack))]
    return sum(math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in arrays)
