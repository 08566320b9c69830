"""The one matrix product of the model, and the only place that knows how a weight lies in memory.

A checkpoint's matrix is `[out…, in…]`. GPUs keep that order (8-bit matrices in `[in, out]` cost a transpose of the whole
weight each step, bf16 is indifferent); XLA's CPU backend wants f32 as `[in…, out…]`: `[out, in]` took 1.58 times as
long at batch 1, 1.49 at 4, 1.16 at 16 (JAX 0.10.2, 2 cores).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.model.spec import Parameter


def input_major(platform: str) -> bool:
    """Whether devices of `platform` store matrices as `[in…, out…]`."""
    return platform == "cpu"


def device_layout(parameter: Parameter, platform: str) -> tuple[int, ...]:
    """The permutation that takes `parameter`'s axes to their order on the device."""
    axes = tuple(range(len(parameter.shape)))
    if not parameter.inputs or not input_major(platform):
        return axes
    return axes[-parameter.inputs :] + axes[: -parameter.inputs]


class Linear(nnx.Module):
    """`x [T, in…] → [T, out…]` in `dtype` (x's own by default), plus a bias `[out…]` where there is one."""

    def __init__(self, weight: Array, bias: Array | None, *, inputs: int, platform: str) -> None:
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)
        self.inputs = inputs
        self.first_input = 0 if input_major(platform) else len(weight.shape) - inputs

    def __call__(self, x: Array, dtype: jnp.dtype | None = None) -> Array:
        contract = (
            tuple(range(x.ndim - self.inputs, x.ndim)),
            tuple(range(self.first_input, self.first_input + self.inputs)),
        )
        y = jax.lax.dot_general(x, self.weight[...], (contract, ((), ())), preferred_element_type=dtype or x.dtype)
        return y if self.bias is None else y + self.bias[...]
