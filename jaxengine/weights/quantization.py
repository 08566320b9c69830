"""Weights in 8 bits, quantised as they are loaded: each output channel has a scale, activations keep their type.

A quantised parameter `name` is `values * scale`: `values` go by its own name, `scale`, f32 and without the contracted
axes, by `name_scale`. The product is scaled, not the weight, so a step reads one byte a weight (XLA fuses the cast into
the product, see `tests/gpu_compile`). A channel has one scale even where devices share its inputs.

The projections of the layers are quantised, those of experts too, each expert's channels by themselves. Embedding and
head are not: often they are one array, and the head's rounding would go straight into the logits; nor is what decides a
state space's time steps or a token's experts. On a CPU int8 is the fast format, as products of integers
(`jaxengine/ops/matmul.py`); of fp8 XLA casts the whole weight before each product.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.device import DeviceTraits
from jaxengine.ops.backend import unsupported_device
from jaxengine.spec.model import ModelSpec
from jaxengine.spec.parameters import Parameter

PROJECTIONS = {"qkv", "out", "cross_q", "cross_kv", "cross_out", "gate_up", "down", "in_proj", "out_proj"}
PROJECTIONS |= {"experts_gate_up", "experts_down", "shared_gate_up", "shared_down"}


@dataclass(frozen=True)
class Format:
    """What the values are, and what the largest of a channel becomes."""

    dtype: str
    largest: float


FORMATS = {"int8": Format("int8", 127), "fp8": Format("float8_e4m3fn", 448)}


def check_quantizable(spec: ModelSpec, quantize: str | None, device: DeviceTraits) -> None:
    """Raises ValueError if `spec` has weights that ought to be quantised and cannot be, or not on `device`."""
    if quantize and spec.traced:
        raise ValueError(f"quantize {quantize!r} is not supported for transformers' own modules: leave it out")
    if not quantize or not spec.experts or not device.kernels:
        return
    if problem := unsupported_device(device, FORMATS[quantize].dtype, "experts"):  # whose kernels read them as they are
        raise ValueError(f"quantize {quantize!r}: {problem}; int8 runs on all that are supported")


def is_quantized(name: str, quantize: str | None) -> bool:
    """Whether parameter `name` is stored in the format `quantize`."""
    layer, _, weight = name.rpartition(".")
    return quantize is not None and bool(layer) and weight in PROJECTIONS


def scale_of(parameter: Parameter) -> Parameter:
    """The scale of a quantised parameter, as a parameter."""
    return Parameter(parameter.shape[: -parameter.inputs], parameter.axes[: -parameter.inputs])


def quantized(
    name: str, weight: Array, inputs: tuple[int, ...], quantize: str, targets: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, Array]:
    """`weight`, of which the axes `inputs` are contracted, as the arrays that `targets` describes for `name`."""
    shardings = tuple(targets[key].sharding for key in (name, f"{name}_scale"))
    values, scale = _compiled(inputs, FORMATS[quantize], shardings)(weight)
    return {name: values, f"{name}_scale": scale}


@cache
def _compiled(inputs: tuple[int, ...], form: Format, shardings: Any) -> Any:
    """Layers share their shapes, so a model of any depth compiles a handful of these."""
    return jax.jit(partial(quantize_weight, inputs, form), out_shardings=shardings)


def quantize_weight(inputs: tuple[int, ...], form: Format, weight: Array) -> tuple[Array, Array]:
    """The values and the scale, without the axes `inputs`, of `weight`; a channel of zeros has the scale 1."""
    weight = weight.astype(jnp.float32)
    magnitude = jnp.abs(weight).max(inputs, keepdims=True)
    scale = jnp.where(magnitude == 0, 1, magnitude / form.largest)
    values = (weight / scale).clip(-form.largest, form.largest)
    whole = jnp.issubdtype(form.dtype, jnp.integer)
    return (jnp.rint(values) if whole else values).astype(form.dtype), scale.squeeze(inputs)
