"""A layer of a state-space model: norm, projection in, convolution, selective scan, gate, projection out.

Attention caches every token; this layer caches once per sequence, in the sequence's page: the last inputs of the
convolution and the states after the last token. Casts are those of transformers: the inputs of the states are f32.

Legend: L layers in the caches, T tokens, C channels, N states of a channel, K taps of the convolution.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.model.layer import ResidualStream
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.ops import AttentionBias, RopeTables, StepBatch
from jaxengine.ops.adapters import AdapterTokens
from jaxengine.ops.batch import ScanInputs, row_starts
from jaxengine.ops.scan import Scan


class StateSpaceLayer(nnx.Module):
    """The residual stream before the layer → after it, and the two caches as they are after each row's last token."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], scan: Scan) -> None:
        assert spec.state_space is not None
        self.space = spec.state_space
        self.norm = Norm.named("mixer_norm", spec.norm, get)
        self.in_proj = Linear.named("in_proj", get)
        self.conv = Convolution(get("conv"), get("conv_bias"))
        self.x_proj = Linear.named("x_proj", get)
        self.dt_proj = Linear.named("dt_proj", get)
        self.a_log, self.skip = nnx.Param(get("a_log")), nnx.Param(get("skip"))
        self.out_proj = Linear.named("out_proj", get)
        self.scan = scan

    def __call__(
        self,
        stream: ResidualStream,
        inputs: Array,
        states: Array,
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[ResidualStream, Array, Array]:
        x = stream.sum()
        projected = self.in_proj(self.norm(x.astype(self.skip[...].dtype)), adapters=batch.adapters)  # [T, 2, C]
        u, gate = projected[:, 0], projected[:, 1]
        u, inputs = self.conv(u, inputs, batch)
        y, states = self.scan(self._scanned(u, batch.adapters), states, batch)
        y = y + u.astype(jnp.float32) * self.skip[...].astype(jnp.float32)
        y = y * jax.nn.silu(gate.astype(jnp.float32))
        if self.space.wide_residual:
            x = x.astype(jnp.float32)
        return ResidualStream(x + self.out_proj(y.astype(u.dtype), adapters=batch.adapters)), inputs, states

    def _scanned(self, u: Array, adapters: AdapterTokens | None) -> ScanInputs:
        """The scan's inputs: u [T, C], and what is selected by it, the step sizes dt and the matrices B and C."""
        rank, size = self.space.rank, self.space.size
        dt, b, c = jnp.split(self.x_proj(u, adapters=adapters), (rank, rank + size), axis=-1)
        if self.space.eps is not None:
            norm = Norm(NormSpec(eps=self.space.eps), None, None)
            dt, b, c = norm(dt), norm(b), norm(c)
        dt = jax.nn.softplus(self.dt_proj(dt, jnp.dtype(jnp.float32), adapters))
        b, c, a_log = (array.astype(jnp.float32) for array in (b, c, self.a_log[...]))
        return ScanInputs(u, dt, b, c, -jnp.exp(a_log))


class Convolution(nnx.Module):
    """A causal convolution of each channel over K tokens, then SiLU: u [T, C] → [T, C], and each row's last inputs."""

    def __init__(self, taps: Any, bias: Any) -> None:
        self.taps = nnx.Param(taps)  # [C, K], the last one for the token itself
        self.bias = None if bias is None else nnx.Param(bias)

    def __call__(self, u: Array, cache: Array, batch: StepBatch) -> tuple[Array, Array]:
        """cache [L, pages, K - 1, C]: the inputs before each row's first token, oldest first."""
        taps = self.taps[...].astype(jnp.float32)
        before = taps.shape[1] - 1
        starts = row_starts(batch)  # [R + 1]
        # The barrier keeps the read before the write: otherwise XLA copies the whole cache (JAX 0.10.2, GPU).
        old = jax.lax.optimization_barrier(cache[batch.layer, batch.tables[:, 0]])  # [R, K - 1, C]
        tokens = jnp.arange(u.shape[0])
        place = tokens - (starts[batch.row] if batch.ragged else tokens)  # [T], in the row
        y = u.astype(jnp.float32) * taps[:, before]
        for back in range(1, before + 1):
            earlier = old[batch.row, jnp.clip(before + place - back, 0, before - 1)]  # [T, C]
            past = jnp.where((place >= back)[:, None], jnp.roll(u, back, axis=0), earlier)
            past = jnp.where((batch.position >= back)[:, None], past, 0)
            y = y + past.astype(jnp.float32) * taps[:, before - back]
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        return jax.nn.silu(y).astype(u.dtype), cache.at[batch.layer, batch.tables[:, 0]].set(_last(u, old, starts))


def _last(u: Array, old: Array, starts: Array) -> Array:
    """The last K - 1 inputs of each row, shaped like `old`; a row shorter than that keeps some of `old`'s."""
    before = old.shape[1]
    place = (starts[1:] - starts[:-1] - before)[:, None] + jnp.arange(before)  # [R, K - 1], in the row
    new = u[jnp.clip(starts[:-1, None] + place, 0, u.shape[0] - 1)]  # [R, K - 1, C]
    shifted = jnp.take_along_axis(old, jnp.clip(before + place, 0, before - 1)[:, :, None], axis=1)
    return jnp.where((place >= 0)[:, :, None], new, shifted).astype(old.dtype)
