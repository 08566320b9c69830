"""Mamba 2 in the place of a layer's attention: a selective state space with one decay for each head.

Like linear attention it keeps in the sequence's slot the last inputs of the convolution and the states after the last
token, and `batch` names slots where that of attention names pages. Casts are those of transformers: what the states are
made of is f32.

Legend: T tokens, H heads, P their dimension, K groups of heads that share B and C, N the size of these.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.model.convolution import Convolution
from jaxengine.model.linear import Linear
from jaxengine.ops import AttentionBias, Ops, RopeTables, StepBatch
from jaxengine.ops.batch import DeltaInputs
from jaxengine.ops.delta_rule import mamba2
from jaxengine.ops.norm import normalised


class Mamba2(nnx.Module):
    """x [T, hidden] → [T, hidden], and what is `kept` as it is after each row's last token."""

    def __init__(self, spec: ModelSpec, get: Callable[[str], Any], ops: Ops) -> None:
        assert spec.mamba2 is not None
        self.sizes = spec.mamba2
        self.eps = spec.norm.eps
        self.projection = Linear.named("mamba_in", get)
        self.shared = Linear.named("mamba_shared", get)
        self.rates = Linear.named("mamba_rates", get)
        self.conv = Convolution(get("mamba_conv"), get("mamba_conv_bias"))
        self.shared_conv = Convolution(get("mamba_shared_conv"), get("mamba_shared_conv_bias"))
        self.decay, self.step, self.skip = (nnx.Param(get(f"mamba_{name}")) for name in ("decay", "step", "skip"))
        self.norm = None if self.sizes.norm == "none" else nnx.Param(get("mamba_norm"))
        self.out = Linear.named("mamba_out", get)
        self.scan = mamba2(ops.backend, ops.mesh, self.sizes.heads)

    @property
    def alone_reads(self) -> None:
        """As of `Attention`: three products read the same."""
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
        inputs, shared_inputs, states = kept
        scales = self.sizes.scales
        projected = _scaled(self.projection(x, adapters=batch.adapters), scales[:2])  # [T, 2, H, P]
        shared = _scaled(self.shared(x, adapters=batch.adapters), scales[2:4])  # [T, 2, K, N]
        u, inputs = self.conv(projected[:, 1], inputs, batch)
        shared, shared_inputs = self.shared_conv(shared, shared_inputs, batch)
        steps = self._steps(x, batch)
        scanned = DeltaInputs(shared[:, 1], shared[:, 0], u, -jnp.exp(self.decay[...]) * steps, steps)
        y, states = self.scan(scanned, states, batch)
        y = y + u.astype(jnp.float32) * self.skip[...][:, None]
        made = self._gated(y, projected[:, 0].astype(jnp.float32)).astype(x.dtype)
        return self.out(made, adapters=batch.adapters), (inputs, shared_inputs, states), nothing

    def _steps(self, x: Array, batch: StepBatch) -> Array:
        """f32 [T, H]"""
        scale = self.sizes.scales[-1] if self.sizes.scales else 1.0
        steps = scale * self.rates(x, jnp.dtype(jnp.float32), batch.adapters) + self.step[...]
        return jnp.clip(jax.nn.softplus(steps), self.sizes.least_step, self.sizes.most_step)

    def _gated(self, y: Array, gate: Array) -> Array:
        """y and its gate, f32 [T, H, P], and the norm of each group of heads."""
        gate = jax.nn.silu(gate)
        if self.norm is None:
            return y * gate
        first = self.sizes.norm == "gate_first"
        grouped = (y * gate if first else y).reshape(len(y), self.sizes.groups, -1, y.shape[-1])
        normed = normalised(grouped, "rms", self.eps, (2, 3)).reshape(y.shape) * self.norm[...].astype(jnp.float32)
        return normed if first else normed * gate


def _scaled(products: Array, scales: tuple[float, ...]) -> Array:
    """`products` [T, 2, …] with each of the two scaled, if there are any scales."""
    if not scales:
        return products
    factors = jnp.asarray(scales, jnp.float32).reshape(2, *(1 for _ in products.shape[2:]))
    return (products.astype(jnp.float32) * factors).astype(products.dtype)
