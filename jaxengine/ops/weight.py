"""A matrix of the model on the devices: one type for floats and for every quantised format.

    w[out, order[in]] = (values[out, in] - zeros[out, group]) * scales[out, group]

Where the format has a table, its entry stands for a value. Without an order, inputs lie as the model has them. A float
weight is its values alone, so it is one leaf among a step's arguments. What is static is `WeightLayout`.
`weights/` chooses a layout and fills a weight; `model/linear.py` and `ops/experts.py` multiply by one.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import Int8Products
from jaxengine.ops.packing import of_octets, unpack


def in_order(x: Array, order: Array | None) -> Array:
    """x [T, in] as a sorted weight reads it: its inputs in `order`, i32 [in]; x itself where that is None."""
    return x if order is None else x.at[:, order].get(mode="promise_in_bounds", unique_indices=True)


@dataclass(frozen=True)
class WeightLayout:
    """How the values of a weight lie in memory, and what they stand for.

    Values are `[stacked…, out…, in…]`, as in the parameter table. Scales and zeros are `[stacked…, out…]`, with an axis
    of groups at the end where the format has groups.

    inputs: how many axes a product contracts.
    stacked: how many axes number whole matrices.
    flat: a product takes the values as one matrix of two axes.
    format: None for floats.
    kernels: whether the kernels `ops/triton/experts` multiply by a stack, or else plain JAX.
    grouped: not 0 where a kernel reads few bits (`ops/triton/grouped`) or experts' groups: KiB of shared memory that a
        program of it may take. The input axes of the values are then one, and the axis of groups is the first of
        scales and zeros behind the stack's.
    plane: of values that are packed as `ops/packing` does; 0 where they are not.
    int8_as: how a CPU's product takes int8, see `ops/matmul`.
    floats: the type of rows that are looked up in a quantised matrix.
    """

    inputs: int = 1
    stacked: int = 0
    flat: bool = False
    format: WeightFormat | None = None
    kernels: bool = False
    grouped: int = 0
    plane: int = 0
    int8_as: Int8Products = "f32"
    floats: str = "float32"


@partial(jax.tree_util.register_dataclass, data_fields=("values", "scales", "zeros", "order"), meta_fields=("layout",))
@dataclass(frozen=True)
class Weight:
    """One matrix, or a stack of them. Its leaves may also be shapes, shardings or partitions of the arrays.

    scales, zeros: None for floats; zeros also where the format has none.
    order: i32 [in], the input that each place of a sorted weight is of; None where inputs lie as the model has them.
    """

    values: Array
    layout: WeightLayout
    scales: Array | None = None
    zeros: Array | None = None
    order: Array | None = None

    def matrix(self, index: Array) -> "Weight":
        """Matrix `index`, i32 [], of a stack."""
        one: Weight = jax.tree.map(lambda array: array[index], self)
        return replace(one, layout=replace(self.layout, stacked=self.layout.stacked - 1))

    def rows(self, ids: Array) -> Array:
        """Rows `ids` [T] of a matrix [rows, in] with one scale a row, in floats → [T, in]."""
        rows = self.values[ids]
        if self.scales is None:
            return rows
        return (rows.astype(jnp.float32) * self.scales[ids][:, None]).astype(self.layout.floats)

    def dense(self, dtype: DTypeLike) -> Array:
        """What the weight stands for, `[stacked…, out…, in…]`; computed in f32 and rounded once."""
        if self.scales is None:
            return self.values.astype(dtype)
        if self.layout.grouped:
            return self._ungrouped().dense(dtype)
        entries = self.layout.format.table if self.layout.format else ()
        values = jnp.asarray(entries, jnp.float32)[self.values] if entries else self.values.astype(jnp.float32)
        channels = values.shape[: values.ndim - self.layout.inputs]
        by_group = (*channels, self.scales.size // int(np.prod(channels)), 1)
        grouped = values.reshape(*by_group[:-1], -1)
        if self.zeros is not None:
            grouped = grouped - self.zeros.astype(jnp.float32).reshape(by_group)
        whole = grouped * self.scales.astype(jnp.float32).reshape(by_group)
        if self.order is not None:
            whole = whole.reshape(*channels, -1)[..., jnp.argsort(self.order)]
        return whole.reshape(values.shape).astype(dtype)

    def _ungrouped(self) -> "Weight":
        """The same weight with unpacked values and the axis of groups last; its input axes stay one."""
        format, layout = self.layout.format, self.layout
        assert format is not None and self.scales is not None
        values = self.values
        if layout.plane:
            codes, offset = unpack(values, layout.plane, format.bits), jnp.asarray(format.offset, format.values)
            values = codes.astype(format.values) - offset if format.bits <= 4 else of_octets(codes, format.values)
        zeros = None if self.zeros is None else jnp.moveaxis(self.zeros, layout.stacked, -1)
        plain = replace(layout, inputs=1, grouped=0, plane=0)
        return Weight(values, plain, jnp.moveaxis(self.scales, layout.stacked, -1), zeros, self.order)
