"""Projections in 8 bits, quantised while they are loaded: each output channel has a scale, activations keep their type.

A quantised matrix is a `Weight` of values in 8 bits and scales in f32. The product is scaled, not the weight, so a step
reads one byte a weight (XLA fuses the cast into the product, see `tests/gpu_compile`). A channel has one scale even
where several devices share its inputs.

The projections of the layers are quantised; those of experts too, with scales for each expert's channels. Embedding and
head are not: often they are one array, and the head's rounding would go straight into the logits. Neither are the
matrices that decide a state space's time steps or a token's experts. On a CPU int8 is the fast format, as products of
integers (`jaxengine/ops/matmul.py`); of fp8 XLA casts the whole weight before each product.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.ops.backend import unsupported_device
from jaxengine.ops.weight import Weight, WeightLayout

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


def weight_formats(source: ParameterSource, quantize: str | None) -> dict[str, WeightFormat]:
    """The format of every matrix that devices hold quantised: one that is stored so keeps the format it has.

    Raises:
        ValueError: a matrix is stored quantised that the model reads in floats, or experts in groups.
    """
    stored = {name: each.format for name in parameter_table(source.spec) if (each := source.stored(name))}
    for name, format in stored.items():
        if not is_projection(name):
            raise ValueError(f"{name} is stored as {format.name}: only the layers' projections can be quantised")
        if "experts" in name and not format.per_channel:
            raise ValueError(f"{name} is stored as {format.name}: experts need one scale for each output channel")
    return chosen_formats(source.spec, quantize) | stored


def quantized(array: Array, target: Weight) -> Weight:
    """`array` in floats, laid out as the values of `target` are, as a weight of that layout and sharding."""
    weight: Weight = _compiled(target.layout, jax.tree.map(lambda each: each.sharding, target))(array)
    return weight


@cache
def _compiled(layout: WeightLayout, shardings: Any) -> Any:
    """Layers share their shapes, so a model of any depth compiles a handful of these."""
    return jax.jit(partial(quantize_weight, layout), out_shardings=shardings)


def quantize_weight(layout: WeightLayout, array: Array) -> Weight:
    """`array` with a scale for each output channel, f32; a channel of zeros has the scale 1."""
    assert layout.format is not None and layout.format.per_channel
    dtype, first = jnp.dtype(layout.format.values), layout.first_input(array.ndim)
    inputs = tuple(range(first, first + layout.inputs))
    whole = jnp.issubdtype(dtype, jnp.integer)
    largest = float(jnp.iinfo(dtype).max if whole else jnp.finfo(dtype).max)
    array = array.astype(jnp.float32)
    magnitude = jnp.abs(array).max(inputs, keepdims=True)
    scales = jnp.where(magnitude == 0, 1, magnitude / largest)
    values = (array / scales).clip(-largest, largest)
    return Weight((jnp.rint(values) if whole else values).astype(dtype), layout, scales.squeeze(inputs))
