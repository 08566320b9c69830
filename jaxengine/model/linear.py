"""The one matrix product of the model, and the only place that decides how a weight lies in memory.

A checkpoint's matrix is `[out…, in…]`. GPUs keep that order (8-bit matrices in `[in, out]` cost a transpose of the
whole weight each step, bf16 is indifferent). XLA's CPU backend is faster with f32 as `[in…, out…]` (46 against 55 ms in
all products of a 135M model at batch 16). With bf16 and int8 it is faster with `[out…, in…]` (of a layer 0.7 against
1.1 ms in bf16 at 4 rows, 3.9 against 7.3 with int8 at 256). It also needs every product as rank 2 by rank 2: a weight
of higher rank goes to a naive loop, 113 against 19 ms at batch 1 (JAX 0.10.2, 2 cores). A GPU must not be given that
reshape: it would merge a sharded axis with one that is not.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.ops.matmul import matmul
from jaxengine.ops.packing import plane_of
from jaxengine.ops.triton import grouped
from jaxengine.ops.weight import Weight, WeightLayout, in_order
from jaxengine.sharding import TP

NARROW = ("bfloat16", "int8")


def weight_layout(
    parameter: Parameter,
    device: DeviceTraits,
    dtype: str,
    format: WeightFormat | None = None,
    share: tuple[int, int] = (0, 0),
) -> WeightLayout:
    """How `device` stores the matrix `parameter` with values of `dtype`.

    Args:
        share: outputs and inputs of a device's share, where `format` has groups or 4 bits.
    """
    kernels = device.kernels and parameter.stacked > 0
    if device.kernels and format is not None and not (format.per_channel and _in_bytes(format, share)):
        plane = plane_of(share[1], format.group) if format.bits <= 4 else 0
        most = 128 if device.much_shared_memory else 64
        return WeightLayout(
            parameter.inputs, parameter.stacked, format=format, kernels=kernels, grouped=most, plane=plane
        )
    input_major = device.input_major and dtype not in NARROW and not parameter.by_row
    return WeightLayout(
        parameter.inputs,
        parameter.stacked,
        input_major,
        device.flat_products,
        format,
        kernels,
        int8_as=device.int8_products,
    )


def _in_bytes(format: WeightFormat, share: tuple[int, int]) -> bool:
    """Whether values with one scale a channel are multiplied as bytes, and not by the kernels for 4 bits."""
    return format.bits > 4 or bool(grouped.unsupported(*share, format.group, format.bits))


class Linear(nnx.Module):
    """`x [T, in…] → [T, out…]` in `dtype` (x's own by default), plus a bias `[out…]` where there is one."""

    def __init__(self, weight: Weight, bias: Array | None) -> None:
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)
        sharding = weight.values.sharding
        whole = (None,) * weight.values.ndim
        self.split = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else whole  # of the values

    @classmethod
    def named(cls, name: str, get: Callable[[str], Any]) -> "Linear":
        """The product with parameter `name`, and its bias where there is one."""
        return cls(get(name), get(f"{name}_bias"))

    def take_order(self) -> Any:
        """The order of a sorted weight's inputs, or None. Whoever takes it gives x in that order from then on."""
        weight: Weight = self.weight.get_value()
        self.weight = nnx.Param(replace(weight, order=None))
        return weight.order

    def __call__(self, x: Array, dtype: jnp.dtype | None = None) -> Array:
        dtype = dtype or x.dtype
        weight: Weight = self.weight.get_value()
        format = weight.layout.format
        if format is None:
            y = _product(x, weight, dtype)
        elif weight.layout.grouped:
            y = self._grouped(x, weight, dtype)
        elif format.per_channel:
            y = self._scaled(x, weight, dtype)
        else:
            y = _product(x, replace(weight, values=weight.dense(x.dtype)), dtype)
        return y if self.bias is None else y + self.bias[...]

    def _scaled(self, x: Array, weight: Weight, dtype: jnp.dtype) -> Array:
        """Each device scales its own product, and sums are of `dtype`. XLA would add f32 and scale the sum."""
        if jax.sharding.get_abstract_mesh().empty:
            return _scaled_product(x, weight, dtype)
        first = weight.layout.first_input(weight.values.ndim)
        end = first + weight.layout.inputs
        inputs, outputs = self.split[first:end], (*self.split[:first], *self.split[end:])

        def share(x: Array, weight: Weight) -> Array:
            y = _scaled_product(x, weight, dtype)
            return jax.lax.psum(y, TP) if TP in inputs else y

        split: Any = replace(weight, values=PartitionSpec(*self.split), scales=PartitionSpec(*outputs))  # type: ignore[arg-type]
        of_arguments, of_result = (PartitionSpec(None, *inputs), split), PartitionSpec(None, *outputs)
        return jax.shard_map(share, in_specs=of_arguments, out_specs=of_result, check_vma=False)(x, weight)

    def _grouped(self, x: Array, weight: Weight, dtype: jnp.dtype) -> Array:
        """As `_scaled`, by the kernel of formats with groups."""
        if jax.sharding.get_abstract_mesh().empty:
            return _grouped_product(x, weight, dtype)
        *outputs, inputs = self.split

        def share(x: Array, weight: Weight) -> Array:
            if weight.order is not None and inputs == TP:  # the inputs of a device's groups lie on all devices
                x = jax.lax.all_gather(x.reshape(len(x), -1), TP, axis=1, tiled=True)
            y = _grouped_product(x, weight, dtype)
            return jax.lax.psum(y, TP) if inputs == TP else y

        assert weight.scales is not None
        of_groups = PartitionSpec(inputs if len(weight.scales) > 1 else None, *outputs)
        zeros = None if weight.zeros is None else of_groups
        order = None if weight.order is None else PartitionSpec(inputs)
        values = PartitionSpec(*self.split)
        split: Any = replace(weight, values=values, scales=of_groups, zeros=zeros, order=order)  # type: ignore[arg-type]
        of_arguments, of_result = (PartitionSpec(None, inputs), split), PartitionSpec(None, *outputs)
        return jax.shard_map(share, in_specs=of_arguments, out_specs=of_result, check_vma=False)(x, weight)


def _grouped_product(x: Array, weight: Weight, dtype: jnp.dtype) -> Array:
    """x [T, in…] times `weight` → [T, out…]."""
    outputs, format, scales, zeros = weight.values.shape[:-1], weight.layout.format, weight.scales, weight.zeros
    assert format is not None and scales is not None
    matrix = weight.values.reshape(math.prod(outputs), -1)
    rows = in_order(x.reshape(len(x), -1), weight.order)
    y = grouped.product(
        rows,
        matrix,
        scales.reshape(len(scales), -1),
        None if zeros is None else zeros.reshape(len(zeros), -1),
        plane=weight.layout.plane,
        group=rows.shape[1] // len(scales),
        offset=format.offset,
        table=format.table,
        most=weight.layout.grouped,
    )
    return y.astype(dtype).reshape(len(x), *outputs)


def _scaled_product(x: Array, weight: Weight, dtype: jnp.dtype) -> Array:
    """f32 until it is scaled: the product may be beyond f16, and XLA fuses the scale into an f32 product only; that of
    JAX 0.12 only if the scale is a vector.
    """
    assert weight.scales is not None
    y = _product(x, weight, jnp.dtype(jnp.float32))
    return (y.reshape(len(y), -1) * weight.scales.reshape(-1)).astype(dtype).reshape(y.shape)


def _product(x: Array, weight: Weight, dtype: jnp.dtype) -> Array:
    """x times the values of `weight`, which are cast to x's dtype and not scaled."""
    if weight.layout.flat:
        return _flat(x, weight, dtype)
    inputs, first = weight.layout.inputs, weight.layout.first_input(weight.values.ndim)
    ours, theirs = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(first, first + inputs))
    values = weight.values.astype(x.dtype)
    return jax.lax.dot_general(x, values, ((ours, theirs), ((), ())), preferred_element_type=dtype)


def _flat(x: Array, weight: Weight, dtype: jnp.dtype) -> Array:
    """The same as a product of two matrices."""
    values, inputs = weight.values, weight.layout.inputs
    if weight.layout.input_major:
        outputs, axis = values.shape[inputs:], 0
        matrix = values.reshape(-1, math.prod(outputs))
    else:
        outputs, axis = values.shape[:-inputs], 1
        matrix = values.reshape(math.prod(outputs), -1)
    y = matmul(x.reshape(x.shape[0], -1), matrix, axis, dtype, weight.layout.int8_as)
    return y.reshape(x.shape[0], *outputs)
