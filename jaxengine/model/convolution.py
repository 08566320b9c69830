"""A causal convolution of each channel over the last tokens of its sequence, in a step's ragged rows.

Legend: L layers in the caches, T tokens, R rows, K taps; the channels, C, may lie on several axes.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.ops import StepBatch, places
from jaxengine.ops.batch import row_starts, settled_ends


class Convolution(nnx.Module):
    """A causal convolution of each channel over K tokens, then SiLU unless it is `linear`: u [T, C] → [T, C], and each
    row's last inputs.
    """

    def __init__(self, taps: Any, bias: Any, linear: bool = False) -> None:
        self.linear = linear
        self.taps = nnx.Param(taps)  # [C, K], the last one for the token itself
        self.bias = None if bias is None else nnx.Param(bias)

    def __call__(self, u: Array, cache: Array, batch: StepBatch) -> tuple[Array, Array]:
        """cache [L, pages, K - 1, C]: the inputs before each row's first token, oldest first."""
        taps = self.taps[...].astype(jnp.float32)
        before = taps.shape[-1] - 1
        starts = row_starts(batch)  # [R + 1]
        old = places.read(cache, batch.layer, batch.tables[:, 0])  # [R, K - 1, C]
        tokens = jnp.arange(u.shape[0])
        place = tokens - (starts[batch.row] if batch.ragged else tokens)  # [T], in the row
        y = u.astype(jnp.float32) * taps[..., before]
        for back in range(1, before + 1):
            earlier = old[batch.row, jnp.clip(before + place - back, 0, before - 1)]  # [T, C]
            past = jnp.where(_like(u, place >= back), jnp.roll(u, back, axis=0), earlier)
            past = jnp.where(_like(u, batch.position >= back), past, 0)
            y = y + past.astype(jnp.float32) * taps[..., before - back]
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        cache = places.write(cache, batch.layer, batch.tables[:, 0], _last(u, old, starts, settled_ends(batch, starts)))
        return (y if self.linear else jax.nn.silu(y)).astype(u.dtype), cache


def _last(u: Array, old: Array, starts: Array, ends: Array) -> Array:
    """The last K - 1 inputs of each row, shaped like `old`; a row shorter than that keeps some of `old`'s."""
    before = old.shape[1]
    place = (ends - starts[:-1] - before)[:, None] + jnp.arange(before)  # [R, K - 1], in the row
    new = u[jnp.clip(starts[:-1, None] + place, 0, u.shape[0] - 1)]  # [R, K - 1, C]
    shifted = jnp.take_along_axis(old, _like(old, jnp.clip(before + place, 0, before - 1)), axis=1)
    return jnp.where(_like(old, place >= 0), new, shifted).astype(old.dtype)


def _like(array: Array, values: Array) -> Array:
    """`values`, which have the first axes of `array`, to be used with it."""
    return values.reshape(*values.shape, *(1 for _ in array.shape[values.ndim :]))
