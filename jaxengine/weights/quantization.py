"""Projections in 8 bits, quantised while they are loaded: each output channel has a scale, activations keep their type.

A quantised matrix is a `Weight` of values in 8 bits and scales in f32. The product is scaled, not the weight, so a step
reads one byte a weight (XLA fuses the cast into the product, see `tests/gpu_compile`). A channel has one scale even
where several devices share its inputs.

The projections of the layers are quantised; those of experts too, with scales for each expert's channels. Embedding and
head are not: often they are one array, and the head's rounding would go straight into the logits. Neither are the
matrices that decide a state space's time steps or a token's experts. On a CPU int8 is the fast format, as products of
integers (`jaxengine/ops/matmul.py`); of fp8 XLA casts the whole weight before each product.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, ParameterSource, parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.ops.backend import unsupported_device
from jaxengine.ops.packing import pack
from jaxengine.ops.triton import grouped
from jaxengine.ops.weight import Weight, WeightLayout
from jaxengine.sharding import SPLIT

PROJECTIONS = {"qkv", "out", "cross_q", "cross_kv", "cross_out", "gate_up", "down", "in_proj", "out_proj"}
PROJECTIONS |= {"experts_gate_up", "experts_down", "shared_gate_up", "shared_down"}


FORMATS = {"int8": WeightFormat("int8", "int8"), "fp8": WeightFormat("fp8", "float8_e4m3fn")}


def check_quantizable(spec: ModelSpec, quantize: str | None, device: DeviceTraits) -> None:
    """Raises ValueError if `spec` has weights that ought to be quantised and cannot be, or not on `device`."""
    if quantize and spec.traced:
        raise ValueError(f"quantize {quantize!r} is not supported for transformers' own modules: leave it out")
    if not quantize or not spec.experts or not device.kernels:
        return
    # The kernels of experts read values as they are stored.
    if problem := unsupported_device(device, FORMATS[quantize].values, "experts"):
        raise ValueError(f"quantize {quantize!r}: {problem}; int8 runs on all that are supported")


def is_projection(name: str) -> bool:
    """Whether parameter `name` is one of the matrices that are quantised."""
    layer, _, kind = name.rpartition(".")
    return bool(layer) and kind in PROJECTIONS


def chosen_formats(spec: ModelSpec, quantize: str | None) -> dict[str, WeightFormat]:
    """The format of every matrix that the engine is told to quantise."""
    return {name: FORMATS[quantize] for name in parameter_table(spec) if quantize and is_projection(name)}


def weight_formats(
    source: ParameterSource, quantize: str | None, device: DeviceTraits, devices: int = 1
) -> dict[str, WeightFormat]:
    """The format of every matrix that devices hold quantised: one that is stored so keeps the format it has, if a
    product can read it. Others are read in floats, and quantised as told. On a CPU, where nothing is said, what is
    stored quantised becomes int8, which computes fastest.
    """
    table, spec = parameter_table(source.spec), source.spec
    stored = {name: each.format for name in filter(is_projection, table) if (each := source.stored(name))}
    kept = {name: format for name, format in stored.items() if _readable(table[name], format, device, devices)}
    fast = dict.fromkeys(stored, FORMATS["int8"]) if device.on_host and quantize is None else {}
    return chosen_formats(spec, quantize) | fast | kept


def _readable(parameter: Parameter, format: WeightFormat, device: DeviceTraits, devices: int) -> bool:
    """Whether a product on `device`, one of `devices` that share the matrix, reads `format` as it is stored.

    Experts need one scale for each output channel, and so do all matrices where the kernel of groups does not run.
    """
    if format.per_channel:
        return not device.on_host or format.values == "int8"
    if not device.kernels or parameter.stacked:
        return False
    outputs, inputs = shared_sizes(parameter, devices)
    return not grouped.unsupported(outputs, inputs, format.group, format.bits)


def shared_sizes(parameter: Parameter, devices: int) -> tuple[int, int]:
    """Outputs and inputs of a device's share of a matrix."""
    sizes = [
        n // devices if axis in SPLIT and n % devices == 0 else n
        for n, axis in zip(parameter.shape, parameter.axes, strict=True)
    ]
    first = len(sizes) - parameter.inputs
    return math.prod(sizes[:first]), math.prod(sizes[first:])


def quantized(array: Array | Weight, target: Weight) -> Weight:
    """A weight of the layout and the sharding of `target`.

    Args:
        array: floats, laid out as the values of `target` are, or as the parameter table has them where the layout is
            grouped; or what a checkpoint stores, laid out likewise.
    """
    weight: Weight = _compiled(target.layout, jax.tree.map(lambda each: each.sharding, target))(array)
    return weight


@cache
def _compiled(layout: WeightLayout, shardings: Any) -> Any:
    """Layers share their shapes, so a model of any depth compiles a handful of these."""

    def make(array: Array | Weight) -> Weight:
        plain = replace(layout, grouped=False, plane=0)
        weight = array if isinstance(array, Weight) else quantize_weight(plain, array)
        return group_weight(layout, weight) if layout.grouped else weight

    return jax.jit(make, out_shardings=shardings)


def group_weight(layout: WeightLayout, weight: Weight) -> Weight:
    """`weight`, laid out as the parameter table has it, in the grouped `layout`."""
    assert layout.format is not None and weight.scales is not None
    outputs = weight.values.shape[: weight.values.ndim - layout.inputs]
    values = weight.values.reshape(*outputs, -1)
    if layout.plane:
        values = pack(values.astype(jnp.int16) + layout.format.offset, layout.plane)
    shared = (each if each is None else _groups_first(each, len(outputs)) for each in (weight.scales, weight.zeros))
    return Weight(values, layout, *shared)


def _groups_first(array: Array, outputs: int) -> Array:
    """[groups, out…] of [out…, groups] or, where there is one group, of [out…]."""
    return jnp.moveaxis(array if array.ndim > outputs else array[..., None], -1, 0)


def quantize_weight(layout: WeightLayout, array: Array) -> Weight:
    """`array` with a scale for each output channel, f32; a channel of zeros has the scale 1.

    Raises:
        ValueError: a format that is only read.
    """
    if layout.format is None or not layout.format.per_channel:
        raise ValueError(f"a matrix in floats cannot be made {layout.format and layout.format.name!r}")
    dtype, first = jnp.dtype(layout.format.values), layout.first_input(array.ndim)
    inputs = tuple(range(first, first + layout.inputs))
    whole = jnp.issubdtype(dtype, jnp.integer)
    largest = float(jnp.iinfo(dtype).max if whole else jnp.finfo(dtype).max)
    array = array.astype(jnp.float32)
    magnitude = jnp.abs(array).max(inputs, keepdims=True)
    scales = jnp.where(magnitude == 0, 1, magnitude / largest)
    values = (array / scales).clip(-largest, largest)
    return Weight((jnp.rint(values) if whole else values).astype(dtype), layout, scales.squeeze(inputs))
