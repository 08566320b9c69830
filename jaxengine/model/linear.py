"""The one matrix product of the model, and the only place that knows how a weight lies in memory.

A checkpoint's matrix is `[out…, in…]`. GPUs keep that order (8-bit matrices in `[in, out]` cost a transpose of the
whole weight each step, bf16 is indifferent). XLA's CPU backend is faster with f32 as `[in…, out…]` (46 against 55 ms in
all products of a 135M model at batch 16), with bf16 and int8 as it was (of a layer 0.7 against 1.1 ms in bf16 at 4
rows, 3.9 against 7.3 with int8 at 256), and needs every product as rank 2 by rank 2: a weight of higher rank goes to a
naive loop, 113 against 19 ms at batch 1 (JAX 0.10.2, 2 cores). A GPU must not be given that reshape: it would merge a
sharded axis with one that is not.

A weight in 8 bits (`jaxengine/weights/quantization.py`) has a scale for each output channel, and the product is scaled.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device import DeviceTraits
from jaxengine.ops.matmul import matmul
from jaxengine.sharding import TP
from jaxengine.spec.parameters import Parameter

NARROW = ("bfloat16", "int8")


def input_major(device: DeviceTraits, dtype: str = "float32") -> bool:
    """Whether `device` stores matrices of `dtype` as `[in…, out…]`."""
    return device.input_major and dtype not in NARROW


def device_layout(parameter: Parameter, device: DeviceTraits, dtype: str) -> tuple[int, ...]:
    """The permutation that takes `parameter`'s axes to their order on the device. A stack's does not go by its type."""
    axes = tuple(range(len(parameter.shape)))
    stack = axes[: parameter.stacked]
    if not parameter.inputs or not (input_major(device) if stack else input_major(device, dtype)):
        return axes
    return stack + axes[-parameter.inputs :] + axes[parameter.stacked : -parameter.inputs]


class Linear(nnx.Module):
    """`x [T, in…] → [T, out…]` in `dtype` (x's own by default), plus a bias `[out…]` where there is one.

    Args:
        weight: `[in…, out…]` if `input_major`, else `[out…, in…]`; with a `scale`, f32 `[out…]`, in 8 bits.
        inputs: how many axes of `weight` are contracted.
        flat: compute as a product of two matrices.
    """

    def __init__(
        self, weight: Array, bias: Array | None, scale: Array | None, *, inputs: int, input_major: bool, flat: bool
    ) -> None:
        self.weight = nnx.Param(weight)
        self.scale = None if scale is None else nnx.Param(scale)
        self.bias = None if bias is None else nnx.Param(bias)
        self.inputs = inputs
        self.first_input = 0 if input_major else len(weight.shape) - inputs
        self.flat = flat
        sharding = weight.sharding
        self.split = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else (None,) * weight.ndim

    @classmethod
    def named(cls, name: str, get: Callable[[str], Any], device: DeviceTraits, inputs: int = 1) -> "Linear":
        """The product with parameter `name` as `device` stores it, and its bias where there is one."""
        weight, bias, scale = (get(key) for key in (name, f"{name}_bias", f"{name}_scale"))
        major = input_major(device, weight.dtype.name)
        return cls(weight, bias, scale, inputs=inputs, input_major=major, flat=device.flat_products)

    def __call__(self, x: Array, dtype: jnp.dtype | None = None) -> Array:
        dtype = dtype or x.dtype
        if self.scale is None:
            y = self._product(x, self.weight[...], dtype)
        else:
            y = self._scaled(x, self.weight[...], self.scale[...], dtype)
        return y if self.bias is None else y + self.bias[...]

    def _scaled(self, x: Array, weight: Array, scale: Array, dtype: jnp.dtype) -> Array:
        """Each device scales its own product and sums are of `dtype`; left to itself XLA adds f32 and scales behind."""
        if jax.sharding.get_abstract_mesh().empty:
            return self._scaled_share(x, weight, scale, dtype)
        end = self.first_input + self.inputs
        inputs, outputs = self.split[self.first_input : end], self.split[: self.first_input] + self.split[end:]

        def share(x: Array, weight: Array, scale: Array) -> Array:
            y = self._scaled_share(x, weight, scale, dtype)
            return jax.lax.psum(y, TP) if TP in inputs else y

        of_arguments = (PartitionSpec(None, *inputs), PartitionSpec(*self.split), PartitionSpec(*outputs))
        of_result = PartitionSpec(None, *outputs)
        return jax.shard_map(share, in_specs=of_arguments, out_specs=of_result, check_vma=False)(x, weight, scale)

    def _scaled_share(self, x: Array, weight: Array, scale: Array, dtype: jnp.dtype) -> Array:
        """f32 until it is scaled: it may be beyond f16, and XLA fuses the scale into an f32 product only; that of JAX
        0.12 only if it is a vector.
        """
        y = self._product(x, weight, jnp.dtype(jnp.float32))
        return (y.reshape(len(y), -1) * scale.reshape(-1)).astype(dtype).reshape(y.shape)

    def _product(self, x: Array, weight: Array, dtype: jnp.dtype) -> Array:
        return (self._flat if self.flat else self._direct)(x, weight, dtype)

    def _direct(self, x: Array, weight: Array, dtype: jnp.dtype) -> Array:
        ours = tuple(range(x.ndim - self.inputs, x.ndim))
        theirs = tuple(range(self.first_input, self.first_input + self.inputs))
        return jax.lax.dot_general(x, weight.astype(x.dtype), ((ours, theirs), ((), ())), preferred_element_type=dtype)

    def _flat(self, x: Array, weight: Array, dtype: jnp.dtype) -> Array:
        out = weight.shape[self.inputs :] if self.first_input == 0 else weight.shape[: -self.inputs]
        size = math.prod(out)
        matrix = weight.reshape((-1, size) if self.first_input == 0 else (size, -1))
        y = matmul(x.reshape(x.shape[0], -1), matrix, 0 if self.first_input == 0 else 1, dtype)
        return y.reshape(x.shape[0], *out)
