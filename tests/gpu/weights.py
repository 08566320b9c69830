"""Random weights for a spec: drawn on the device for measurements, or on the host where two platforms must agree.

Values are scaled by fan-in so that activations stay finite through every layer; nothing here is a trained model.
"""

import math
import zlib
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, parameter_table
from jaxengine.architecture.weight_format import StoredWeight
from jaxengine.device import DeviceTraits
from jaxengine.ops.weight import Weight
from jaxengine.weights.loading import abstract_parameters, as_stored, ungrouped
from jaxengine.weights.quantization import chosen_formats


def amplitude(parameter: Parameter) -> float:
    """Half the width of the uniform draw: unit variance out of a matrix, a tenth in a vector."""
    if len(parameter.shape) == 1:
        return 0.1
    fan_in = math.prod(parameter.shape[-parameter.inputs :]) if parameter.inputs else parameter.shape[-1]
    return math.sqrt(3 / fan_in)


def centre(name: str) -> float:
    return 1.0 if name.endswith(("norm", "_scale")) else 0.0


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def random_parameters(
    spec: ModelSpec, mesh: Mesh, dtype: str, device: DeviceTraits, quantize: str | None = None
) -> dict[str, Any]:
    """Every parameter of `abstract_parameters`, made on the devices: each draws its own shard, the host sees none."""
    targets = abstract_parameters(spec, mesh, dtype, device, chosen_formats(spec, quantize, mesh.size))
    parameters: dict[str, Any] = {}
    for name, parameter in parameter_table(spec).items():
        target = targets[name]
        if isinstance(target, Weight) and target.layout.grouped:
            target_shape = ungrouped(parameter, mesh, target.layout).values
        else:
            target_shape = target.values if isinstance(target, Weight) else target
        shape = target_shape.update(dtype=jnp.dtype(dtype))
        parameters[name] = as_stored(_draw(shape, amplitude(parameter), centre(name), seed_of(name)), target)
    parameters.setdefault("head", parameters["embedding"])
    return parameters


def _draw(array: jax.ShapeDtypeStruct, width: float, middle: float, seed: int) -> Array:
    return _drawing(array.shape, array.dtype, array.sharding)(width, middle, jax.random.key(seed))


@cache
def _drawing(shape: tuple[int, ...], dtype: jnp.dtype, sharding: jax.sharding.Sharding) -> jax.stages.Wrapped:
    """Layers share their shapes, so a model of any depth compiles a handful of these."""
    return jax.jit(partial(_uniform, shape, dtype), out_shardings=sharding)


def _uniform(shape: tuple[int, ...], dtype: jnp.dtype, width: Array, middle: Array, key: Array) -> Array:
    return (middle + width * jax.random.uniform(key, shape, minval=-1, maxval=1)).astype(dtype)


@dataclass(frozen=True)
class RandomSource:
    """A `ParameterSource` of numbers that bfloat16 holds exactly, the same on every platform and in every dtype."""

    spec: ModelSpec
    dtype: str = "bfloat16"

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        parameter = parameter_table(self.spec)[name]
        noise = np.random.default_rng(seed_of(name)).uniform(-1, 1, parameter.shape)
        drawn: np.ndarray = (centre(name) + 2 * amplitude(parameter) * noise).astype(ml_dtypes.bfloat16)
        return drawn[index]

    def stored(self, name: str) -> StoredWeight | None:
        return None
