"""EAGLE's layers, or a module of the model's: from a token's feature and the token behind it to a state, of which its
head guesses.

See `architecture.drafter.Eagle` for the formulas. Features are computed by `FeatureDecoder`, in the steps of the model.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.drafter import DRAFTER, Eagle
from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.model.attention import Attention
from jaxengine.model.decoder import Layers, run_layer
from jaxengine.model.drafter import Guesses, likeliest
from jaxengine.model.embedding import PADDING, Head, without_padding
from jaxengine.model.layer import Layer, ResidualStream
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import MLP
from jaxengine.model.norm import Norm
from jaxengine.model.rope import rope_tables_of
from jaxengine.ops import AttentionBias, Ops, RopeTables, StepBatch
from jaxengine.ops.weight import Weight


class FirstLayer(nnx.Module):
    """The layer that reads embeddings and features, [T, hidden] each."""

    def __init__(self, spec: Eagle, get: Callable[[str], Any], ops: Ops) -> None:
        def norm(name: str) -> Norm:
            return Norm.named(f"layers.0.{name}", spec.spec.norm, get)

        of_layer = _of_layer(0, get)
        self.norm_before_residual = spec.norm_before_residual
        self.fusion = None if spec.taps else Linear.named("fusion", get)
        self.norms = nnx.List([norm("attention_norm"), norm("feature_norm")] if spec.taps else [])
        self.attention = Attention(spec.spec, spec.spec.kind(0), of_layer, ops)
        self.mlp_norm = norm("mlp_norm")
        self.mlp = MLP(spec.spec, of_layer)
        self.ops = ops

    def __call__(
        self,
        embedded: Array,
        features: Array,
        keys: Array,
        values: Array,
        rope_tables: RopeTables | None,
        batch: StepBatch,
    ) -> tuple[ResidualStream, Array, Array]:
        x, branch_input = self._branch_input(embedded, features)
        attended, keys, values = self.attention(branch_input, keys, values, rope_tables, AttentionBias(), batch)
        x, branch_input = self.mlp_norm.after(x, attended, self.ops)
        return ResidualStream(x, self.mlp(branch_input)), keys, values

    def _branch_input(self, embedded: Array, features: Array) -> tuple[Array, Array]:
        """The residual stream, and what attention reads."""
        if self.fusion is not None:
            x = self.fusion(jnp.concatenate([embedded, features], axis=1))
            return x, x
        embedding_norm, feature_norm = self.norms
        normed = feature_norm(features)
        side_by_side = jnp.concatenate([embedding_norm(embedded), normed], axis=1)  # [T, 2 · hidden]
        return normed if self.norm_before_residual else features, side_by_side


class FirstOfModule(nnx.Module):
    """The same of a module: what is fused is normalised first, and the layer is like the model's."""

    def __init__(self, spec: Eagle, get: Callable[[str], Any], ops: Ops) -> None:
        self.norms = nnx.List(Norm.named(name, spec.spec.norm, get) for name in ("embedding_norm", "feature_norm"))
        self.fusion = Linear.named("fusion", get)
        self.layer = Layer(spec.spec, spec.spec.kind(0), _of_layer(0, get), ops)

    def __call__(
        self,
        embedded: Array,
        features: Array,
        keys: Array,
        values: Array,
        rope_tables: RopeTables | None,
        batch: StepBatch,
    ) -> tuple[ResidualStream, Array, Array]:
        embedding_norm, feature_norm = self.norms
        x = self.fusion(jnp.concatenate([embedding_norm(embedded), feature_norm(features)], axis=1))
        return self.layer(ResidualStream(x), keys, values, rope_tables, AttentionBias(), batch)


class EagleDecoder(nnx.Module):
    """
    Args:
        model: for which it drafts; no other id than its tokens is guessed.
        parameters: of both, by the names of `spec.parameters()` and `parameter_table`.
        head: the model's, which it may share.
    """

    def __init__(
        self, spec: Eagle, model: ModelSpec, parameters: dict[str, Any], device: DeviceTraits, ops: Ops, head: Head
    ) -> None:
        def get(name: str) -> Any:
            return parameters.get(f"{DRAFTER}{name}")

        layers = spec.spec
        self.spec = spec
        self.guesses = spec.guesses
        self.tokens = model.tokens
        self.device = device
        self.ops = ops
        self.embedding = nnx.Param(get("embedding") if spec.own_embedding else parameters["embedding"])
        self.first = (FirstOfModule if spec.module else FirstLayer)(spec, get, ops)
        self.others = nnx.List(
            Layer(layers, layers.kind(i), _of_layer(i, get), ops) for i in range(1, layers.num_layers)
        )
        self.final_norm = Norm.named("final_norm", layers.norm, get) if layers.final_norm else None
        self.head = Linear.named("head", get) if spec.own_head else head
        self.offsets = nnx.Param(get("offsets")) if spec.own_ids else None

    def __call__(self, ids: Array, features: Array, layers: Layers, batch: StepBatch) -> tuple[Array, Layers]:
        """The tokens `ids` [T] that stand behind those with `features` [T, feature_size], whose positions `batch` has
        → states [T, hidden], and the caches with these tokens read.
        """
        embedding: Weight = self.embedding.get_value()
        sizes, (keys, values) = self.spec.spec, layers
        rope_tables = [rope_tables_of(kind.rope, sizes.head_dim, batch, self.device) for kind in sizes.kinds]
        embedded = embedding.rows(ids).astype(features.dtype)
        stream, keys, values = self.first(embedded, features, keys, values, rope_tables[0], batch.of_layer(0))
        for i, layer in enumerate(self.others, start=1):
            rope = rope_tables[i % len(rope_tables)]
            stream, keys, values = run_layer(layer, stream, keys, values, rope, AttentionBias(), batch.of_layer(i))
        return stream.sum(), (keys, values)

    def guess(self, states: Array) -> tuple[Guesses, Array]:
        """What comes next after states [n, hidden], one guess each, [n]; and the features for which these are the
        tokens behind.
        """
        normed = states if self.final_norm is None else self.final_norm(states)
        id, chance = likeliest(self._logits(normed))
        if self.offsets is not None:
            id = id + self.offsets[...][id]
        return Guesses(id, jnp.where(jnp.isnan(chance), 0, chance)), normed if self.spec.norm_output else states

    def _logits(self, normed: Array) -> Array:
        """f32 [n, ids of the head], `PADDING` for ids that are no tokens of the model."""
        if isinstance(self.head, Head):
            return self.head(normed)
        logits = self.head(normed, jnp.dtype(jnp.float32))
        if self.offsets is None:
            return without_padding(logits, self.tokens)
        ids = jnp.arange(logits.shape[1]) + self.offsets[...]
        return jnp.where(ids < self.tokens, logits, PADDING)


def _of_layer(i: int, get: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda name: get(f"layers.{i}.{name}")
