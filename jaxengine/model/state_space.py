"""A layer of a state-space model: norm, projection in, convolution, selective scan, gate, projection out.

Attention caches every token; this layer caches once per sequence, in the sequence's page: the last inputs of the
convolution and the states after the last token. Casts are those of transformers: the inputs of the states are f32.

Legend: L layers in the caches, T tokens, C channels, N states of a channel.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.model import Norm as NormSpec
from jaxengine.model.convolution import Convolution
from jaxengine.model.layer import ResidualStream
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.ops import AttentionBias, RopeTables, StepBatch
from jaxengine.ops.adapters import AdapterTokens
from jaxengine.ops.batch import ScanInputs
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
