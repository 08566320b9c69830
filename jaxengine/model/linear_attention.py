"""Linear attention in the place of a layer's attention: Gated DeltaNet.

Attention caches every token; this caches once per sequence, in the sequence's slot: the last inputs of the convolution
and the states after the last token. `batch` names slots where that of attention names pages.

Legend: T tokens, K key heads, G value heads of each, D and V their dimensions, C channels of a key head that are
convolved.
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
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.ops import AttentionBias, Ops, RopeTables, StepBatch
from jaxengine.ops.batch import DeltaInputs
from jaxengine.ops.delta_rule import delta_rule


class LinearAttention(nnx.Module):
    """x [T, hidden] → [T, hidden], and what is `kept` as it is after each row's last token."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], ops: Ops) -> None:
        assert spec.linear_attention is not None
        self.sizes = spec.linear_attention
        self.projection = Linear.named("linear_in", get)
        self.gate = Linear.named("linear_gate", get)
        self.rates = Linear.named("linear_rates", get)
        self.conv = Convolution(get("linear_conv"), None)
        self.decay, self.step = nnx.Param(get("linear_decay")), nnx.Param(get("linear_step"))
        eps = spec.norm.eps if self.sizes.eps is None else self.sizes.eps
        self.norm = Norm(NormSpec("rms", eps), get("linear_norm"), None)
        self.out = Linear.named("linear_out", get)
        self.rule = delta_rule(ops.backend, ops.mesh, self.sizes.key_heads)

    @property
    def alone_reads(self) -> None:
        """As of `Attention`: several products read the same."""
        return None

    def __call__(
        self,
        x: Array,
        kept: tuple[Array, ...],
        nothing: tuple[()],
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Array, tuple[Array, ...], tuple[()]]:
        inputs, states = kept
        convolved, inputs = self.conv(self.projection(x, adapters=batch.adapters), inputs, batch)  # [T, K, C]
        y, states = self.rule(self._inputs(convolved, x, batch), states, batch)
        gate = self.gate(x, adapters=batch.adapters).astype(jnp.float32)  # [T, K, G, V]
        made = self.norm(y.astype(x.dtype)) * jax.nn.silu(gate)
        return self.out(made.astype(x.dtype), adapters=batch.adapters), (inputs, states), nothing

    def _inputs(self, convolved: Array, x: Array, batch: StepBatch) -> DeltaInputs:
        """Of the channels [T, K, C] behind the convolution, and of x."""
        sizes = self.sizes
        queries, keys, values = jnp.split(convolved, (sizes.key_dim, 2 * sizes.key_dim), axis=-1)
        values = values.reshape(len(x), sizes.key_heads, sizes.group, sizes.value_dim)
        rate, step = jnp.split(self.rates(x, jnp.dtype(jnp.float32), batch.adapters), 2, axis=-1)  # [T, K, G]
        decay = -jnp.exp(self.decay[...]) * jax.nn.softplus(step + self.step[...])
        return DeltaInputs(queries, keys, values, decay, sizes.most_rate * jax.nn.sigmoid(rate))
