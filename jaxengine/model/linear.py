"""The one matrix product of the model, and the only place that decides how a weight lies in memory: `[out…, in…]`, as
in a checkpoint.

GPUs want that order (8-bit matrices in `[in, out]` cost a transpose of the whole weight each step, bf16 is
indifferent), and so does a CPU (`ops/matmul.py`). XLA's CPU backend also needs every product as rank 2 by rank 2: a
weight of higher rank goes to a naive loop, 113 against 19 ms at batch 1 (JAX 0.10.2, 2 cores). A GPU must not be given
that reshape: it would merge a sharded axis with one that is not.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.ops.adapters import AdapterStack, AdapterTokens, change
from jaxengine.ops.matmul import matmul
from jaxengine.ops.packing import plane_of
from jaxengine.ops.triton import MIN_CAPABILITY, grouped
from jaxengine.ops.weight import Weight, WeightLayout, in_order
from jaxengine.sharding import TP

ADAPTERS = "_adapters"  # behind the name of a matrix: the stack of its adapters

Product = Callable[[Array, Weight], Array]


def weight_layout(
    parameter: Parameter,
    device: DeviceTraits,
    format: WeightFormat | None = None,
    share: tuple[int, int] = (0, 0),
) -> WeightLayout:
    """How `device` stores the matrix `parameter`.

    Args:
        share: outputs and inputs of a device's share, where there is a `format`.
    """
    kernels = device.kernels and parameter.stacked > 0
    plane = 0 if format is None else _plane(parameter, device, format, share)
    if device.kernels and format is not None and (plane or not format.per_channel):
        shared = device.shared_memory
        return WeightLayout(
            parameter.inputs, parameter.stacked, format=format, kernels=kernels, grouped=shared, plane=plane
        )
    return WeightLayout(
        parameter.inputs, parameter.stacked, device.flat_products, format, kernels, int8_as=device.int8_products
    )


def _plane(parameter: Parameter, device: DeviceTraits, format: WeightFormat, share: tuple[int, int]) -> int:
    """Of values that lie packed; 0 for bytes. The experts' kernels read 8 bits as bytes. XLA multiplies by what has one
    scale a channel where that does not divide, or the device is none that our kernels run on.
    """
    in_bytes = parameter.stacked > 0 and format.bits > 4
    by_xla = format.per_channel and format.bits > 4 and (device.capability or (0, 0)) < MIN_CAPABILITY
    if in_bytes or by_xla or grouped.unsupported(*share, format.group, format.bits):
        return 0
    return plane_of(share[1], format.group, format.bits)


class Linear(nnx.Module):
    """`x [T, in…] → [T, out…]` in `dtype` (x's own by default), plus a bias `[out…]` where there is one, plus what the
    adapter of each token adds.
    """

    def __init__(self, weight: Weight, bias: Array | None, adapters: AdapterStack | None = None) -> None:
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)
        self.adapters = None if adapters is None else nnx.Param(adapters)
        self.split = _split(weight.values)
        self.adapter_split = None if adapters is None else (_split(adapters.a), _split(adapters.b))

    @classmethod
    def named(cls, name: str, get: Callable[[str], Any]) -> "Linear":
        """The product with parameter `name`, and its bias and its adapters where there are any."""
        return cls(get(name), get(f"{name}_bias"), get(f"{name}{ADAPTERS}"))

    def take_order(self) -> Any:
        """The order of a sorted weight's inputs, or None. Whoever takes it gives x in that order from then on. With
        adapters it is not given away: their inputs lie as the model has them.
        """
        weight: Weight = self.weight.get_value()
        if self.adapters is not None:
            return None
        self.weight = nnx.Param(replace(weight, order=None))
        return weight.order

    def __call__(self, x: Array, dtype: jnp.dtype | None = None, adapters: AdapterTokens | None = None) -> Array:
        dtype = dtype or x.dtype
        weight: Weight = self.weight.get_value()
        format = weight.layout.format
        if weight.layout.grouped:
            y = self._shared(partial(_grouped_product, dtype=dtype), x, weight, adapters)
        elif format is not None and format.per_channel:
            y = self._shared(partial(_scaled_product, dtype=dtype), x, weight, adapters)
        else:
            if format is not None:
                weight = Weight(weight.dense(x.dtype), replace(weight.layout, format=None))
            alone = self.adapters is None or adapters is None
            product = partial(_product, dtype=dtype)
            y = product(x, weight) if alone else self._shared(product, x, weight, adapters)
        return y if self.bias is None else y + self.bias[...]

    def activated(self, x: Array, activation: Callable[..., Array], adapters: AdapterTokens | None = None) -> Array:
        """`activation` of the products of `x` with the matrices of a weight [2 or 1, F, in…], and what is added to
        them → [T, F]. Where nothing is, the kernel that multiplies activates, in f32: no other reads and writes what it
        makes. Products that are activated apart have been rounded.
        """
        weight: Weight = self.weight.get_value()
        if not weight.layout.grouped or self.bias is not None or (adapters is not None and self.adapters is not None):
            products = self(x, adapters=adapters)
            return activation(*(products[:, i] for i in range(products.shape[1])))
        return self._shared(partial(_grouped_product, dtype=x.dtype, activation=activation), x, weight, None, joined=1)

    def _shared(
        self, product: Product, x: Array, weight: Weight, adapters: AdapterTokens | None, joined: int = 0
    ) -> Array:
        """Each device makes `product` of its own share, scales it, and adds what adapters do to it; sums over devices
        are of its dtype. XLA would add f32 and scale the sum, and sum what adapters make apart. `product` has joined so
        many of the weight's axes of outputs.
        """
        stack = None if self.adapters is None or adapters is None else self.adapters.get_value()
        if jax.sharding.get_abstract_mesh().empty:
            return _with_adapters(product(x, weight), x, stack, adapters)
        inputs, outputs = self._axes(weight)

        def share(x: Array, weight: Weight, stack: AdapterStack | None, adapters: AdapterTokens | None) -> Array:
            rows = x
            if weight.order is not None and TP in inputs:  # the inputs of a device's groups lie on all devices
                rows = jax.lax.all_gather(x.reshape(len(x), -1), TP, axis=1, tiled=True)
            y = _with_adapters(product(rows, weight), x, stack, adapters)
            return jax.lax.psum(y, TP) if TP in inputs else y

        split_stack = None
        if stack is not None and self.adapter_split is not None:
            a, b = (PartitionSpec(*split) for split in self.adapter_split)
            split_stack = replace(stack, a=a, b=b)  # type: ignore[arg-type]
        splits = (
            PartitionSpec(None, *inputs),
            self._split_weight(weight, inputs, outputs),
            split_stack,
            jax.tree.map(lambda _: PartitionSpec(), adapters),
        )
        on_shares = jax.shard_map(
            share, in_specs=splits, out_specs=PartitionSpec(None, *outputs[joined:]), check_vma=False
        )
        y: Array = on_shares(x, weight, stack, adapters)
        return y

    def _axes(self, weight: Weight) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """How inputs and outputs are split."""
        inputs = 1 if weight.layout.grouped else weight.layout.inputs
        return self.split[-inputs:], self.split[:-inputs]

    def _split_weight(self, weight: Weight, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
        """The partitions of a weight's arrays."""
        values = PartitionSpec(*self.split)
        if not weight.layout.grouped:
            scales = None if weight.scales is None else PartitionSpec(*outputs)
            return replace(weight, values=values, scales=scales)  # type: ignore[arg-type]
        assert weight.scales is not None
        of_groups = PartitionSpec(*inputs if len(weight.scales) > 1 else (None,), *outputs)
        zeros = None if weight.zeros is None else of_groups
        order = None if weight.order is None else PartitionSpec(*inputs)
        return replace(weight, values=values, scales=of_groups, zeros=zeros, order=order)  # type: ignore[arg-type]


def _split(values: Array) -> tuple[Any, ...]:
    """Over which axis of devices each axis of `values` is split; over none if it is only being traced."""
    sharding = getattr(values, "sharding", None)
    return tuple(sharding.spec) if isinstance(sharding, NamedSharding) else (None,) * values.ndim


def _with_adapters(y: Array, x: Array, stack: AdapterStack | None, adapters: AdapterTokens | None) -> Array:
    """Products y [T, out…] of x, and what each token's adapter adds to them."""
    if stack is None or adapters is None:
        return y
    return y + change(x, stack, adapters, y.dtype)


def _grouped_product(
    x: Array, weight: Weight, dtype: jnp.dtype, activation: Callable[..., Array] | None = None
) -> Array:
    """x [T, in…] times `weight` → [T, out…], or `activation` of all matrices of its first axis → [T, out…] without."""
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
        octets=format.values if weight.layout.plane and format.bits > 4 else "",
        shared=weight.layout.grouped,
        activation=activation,
        parts=1 if activation is None else outputs[0],
    )
    return y.astype(dtype).reshape(len(x), *outputs[activation is not None :])


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
    ours, theirs = (tuple(range(each.ndim - weight.layout.inputs, each.ndim)) for each in (x, weight.values))
    values = weight.values.astype(x.dtype)
    return jax.lax.dot_general(x, values, ((ours, theirs), ((), ())), preferred_element_type=dtype)


def _flat(x: Array, weight: Weight, dtype: jnp.dtype) -> Array:
    """The same as a product of two matrices."""
    outputs = weight.values.shape[: -weight.layout.inputs]
    matrix = weight.values.reshape(math.prod(outputs), -1)
    y = matmul(x.reshape(x.shape[0], -1), matrix, dtype, weight.layout.int8_as)
    return y.reshape(x.shape[0], *outputs)
