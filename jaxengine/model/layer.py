"""One layer: attention and MLP branches of the residual stream, in any of the arrangements of `Block`, or one alone.

In place of attention a layer may keep states. In a model with an encoder, a third branch between the two attends to the
encoder's output. A layer that attends to pictures adds nothing to tokens that see none, or what its MLP makes of them
alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import LayerKind, ModelSpec
from jaxengine.model.attention import Attention, CrossAttention, PictureAttention, ReadingAttention
from jaxengine.model.latent_attention import LatentAttention
from jaxengine.model.layer_inputs import LayerInput
from jaxengine.model.linear import Linear
from jaxengine.model.linear_attention import LinearAttention
from jaxengine.model.mamba2 import Mamba2
from jaxengine.model.mlp import MLP
from jaxengine.model.moe import ExpertsBeside, MixtureOfExperts
from jaxengine.model.norm import Norm
from jaxengine.model.rounding import times
from jaxengine.model.short_convolution import ShortConvolution
from jaxengine.model.side_by_side import SideBySide
from jaxengine.ops import AttentionBias, Ops, RopeTables, StepBatch

AnyAttention = Attention | ReadingAttention | LatentAttention
Recurrence = LinearAttention | Mamba2 | ShortConvolution


class ResidualStream(NamedTuple):
    """The residual stream [T, hidden], and a branch not yet added to it, so that one kernel adds and normalises."""

    x: Array
    branch: Array | None = None

    def sum(self) -> Array:
        return self.x if self.branch is None else self.x + self.branch


class Layer(nnx.Module):
    """The residual stream before the layer → after it, and the caches with the tokens' keys and values."""

    def __init__(self, spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops) -> None:
        def norm(name: str, product: Linear | None = None) -> Norm:
            """What it makes is for `product` alone, if one is given, so it comes in the order of that one's inputs."""
            return Norm.named(name, spec.norm, get, None if product is None else product.take_order())

        self.block = spec.block_of(kind)
        sandwich = self.block == "sandwich"  # a norm before and after each branch
        self.residual_scale = spec.residual_scale
        self.attention_scale = nnx.Param(get("attention_scale")) if spec.layer_scale else None
        self.mlp_scale = nnx.Param(get("mlp_scale")) if spec.layer_scale else None
        self.attention_gate = nnx.Param(get("attention_gate")) if kind.gates != "none" else None
        self.mlp_gate = nnx.Param(get("mlp_gate")) if kind.gates != "none" else None
        self.of_pictures = kind.cross is not None
        self.blind_mlp = kind.cross is None or kind.cross.blind_mlp
        self.ops = ops
        alone = self.block in ("sequential", "sandwich")  # a norm before each branch, and no two branches share one
        attention = _sequence_mixer(spec, kind, get, ops)
        self.attention, first = attention, attention.alone_reads if attention and alone else None
        self.attention_norm = norm("attention_norm", first) if attention else None
        self.attention_post_norm = norm("attention_post_norm") if attention and sandwich else None
        self.cross_norm = norm("cross_norm") if spec.encoder else None
        self.cross = CrossAttention(spec, kind, get, ops) if spec.encoder else None
        mlp = _feed_forward(spec, kind, get)
        first = mlp.gate_up if isinstance(mlp, MLP) and alone else None
        self.mlp = mlp
        self.experts = ExpertsBeside(spec, get) if kind.experts and isinstance(mlp, MLP) else None
        self.mlp_norm = None if mlp is None or self.block == "parallel" else norm("mlp_norm", first)
        self.mlp_post_norm = norm("mlp_post_norm") if mlp and sandwich else None
        self.input = LayerInput(spec, get) if spec.embedding.layer_width else None
        self.output_scale = nnx.Param(get("output_scale")) if spec.output_scale else None

    def __call__(
        self,
        stream: ResidualStream,
        keys: Any,
        values: Any,
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
        own_input: Array | None = None,
    ) -> tuple[ResidualStream, Any, Any]:
        """`own_input` [T, width] is what the layer reads of each token beside the stream, if it does."""
        if self.attention is None:
            return self._output(self._with_mlp(stream, batch), own_input, batch), keys, values
        x, branch_input = self._branch_input(stream, self.attention_norm)
        attended, keys, values = self.attention(branch_input, keys, values, rope_tables, bias, batch)
        attended = _gated(_times(attended, self.attention_scale), self.attention_gate)
        if self.of_pictures:
            attended = _of_those_who_see(attended, batch)
        if self.block in ("parallel", "parallel_norms"):
            if self.mlp_norm is not None:
                branch_input = self.mlp_norm(x)
            stream = ResidualStream(x, self._scaled(attended + self._mlp(branch_input, x, batch)))
            return self._output(stream, own_input, batch), keys, values
        stream = self._add_branch(x, attended, self.attention_norm, self.attention_post_norm)
        if self.cross is not None and batch.cross is not None:
            x, branch_input = self._branch_input(stream, self.cross_norm)
            stream = self._add_branch(x, self.cross(branch_input, keys, values, batch.cross), self.cross_norm, None)
        stream = stream if self.mlp is None else self._with_mlp(stream, batch)
        return self._output(stream, own_input, batch), keys, values

    def _output(self, stream: ResidualStream, own_input: Array | None, batch: StepBatch) -> ResidualStream:
        """The residual stream as it leaves the layer."""
        if self.input is not None and own_input is not None:
            x = stream.sum()
            stream = ResidualStream(x, self.input(x, own_input, batch.adapters))
        return stream if self.output_scale is None else ResidualStream(stream.sum() * self.output_scale[...])

    def blind(self, stream: ResidualStream, batch: StepBatch) -> ResidualStream:
        """What a layer that attends to pictures makes of the residual stream where there are none."""
        return self._with_mlp(stream, batch) if self.blind_mlp else stream

    def _with_mlp(self, stream: ResidualStream, batch: StepBatch) -> ResidualStream:
        """`stream` with the MLP's branch behind that of attention; of tokens that are not wanted 0."""
        wanted, all_tokens = batch.wanted, partial(self._with_whole_mlp, batch=batch)
        plain = isinstance(self.mlp, MLP) and self.experts is None and not self.of_pictures
        if wanted is None or batch.adapters is not None or not plain:
            return all_tokens(stream)

        def of_wanted(stream: ResidualStream) -> ResidualStream:
            made = all_tokens(jax.tree.map(lambda of_tokens: of_tokens[wanted.token], stream))
            return jax.tree.map(lambda some: jnp.zeros_like(some, shape=x.shape).at[wanted.token].set(some), made)

        x = stream.x
        return jax.lax.cond(wanted.only, of_wanted, all_tokens, stream)  # type: ignore[no-any-return]

    def _with_whole_mlp(self, stream: ResidualStream, batch: StepBatch) -> ResidualStream:
        x, branch_input = self._branch_input(stream, self.mlp_norm)
        return self._add_branch(x, self._mlp(branch_input, x, batch), self.mlp_norm, self.mlp_post_norm)

    def _mlp(self, x: Array, stream: Array, batch: StepBatch) -> Array:
        """The branch's input, and the residual stream in front of it, which experts beside an MLP read."""
        assert self.mlp is not None
        if isinstance(self.mlp, MixtureOfExperts):
            made = self.mlp(x, batch.tokens, batch.adapters)
        else:
            made = self.mlp(x, batch.adapters)
        if self.experts is not None:
            made = self.experts(stream, made, batch.tokens, batch.adapters)
        made = _gated(_times(made, self.mlp_scale), self.mlp_gate)
        return made if self.blind_mlp else _of_those_who_see(made, batch)

    def _branch_input(self, stream: ResidualStream, norm: Norm | None) -> tuple[Array, Array]:
        """The residual stream with its branch added, and the next branch's input."""
        if norm is None or self.block in ("branch_norm", "post_norm"):
            return stream.sum(), stream.sum()
        return norm.after(*stream, self.ops)

    def _add_branch(self, x: Array, branch: Array, norm: Norm | None, post_norm: Norm | None) -> ResidualStream:
        """The residual stream after a branch, which is normalised, scaled and added as the block says."""
        if post_norm is not None:
            branch = post_norm(branch)
        if norm is not None and self.block == "branch_norm":
            branch = norm(branch)
        branch = self._scaled(branch)
        if norm is not None and self.block == "post_norm":
            return ResidualStream(norm.after(x, branch, self.ops)[1])
        return ResidualStream(x, branch)

    def _scaled(self, branch: Array) -> Array:
        return times(branch, self.residual_scale)


def _sequence_mixer(
    spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops
) -> AnyAttention | PictureAttention | Recurrence | SideBySide | None:
    """What lets a token of this kind of layer read others."""
    if kind.cross is not None:
        return PictureAttention(spec, kind, get, ops)
    if kind.mixer == "both":
        return SideBySide(spec.beside, Attention(spec, kind, get, ops), _recurrence(spec, get, ops))
    if kind.recurrent:
        return _recurrence(spec, get, ops)
    return _attention(spec, kind, get, ops) if kind.attends else None


def _attention(spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any], ops: Ops) -> AnyAttention:
    if spec.attention.latent:
        return LatentAttention(spec, kind, get, ops)
    return (Attention if kind.reads is None else ReadingAttention)(spec, kind, get, ops)


def _recurrence(spec: ModelSpec, get: Callable[[str], Any], ops: Ops) -> Recurrence:
    if spec.linear_attention is not None:
        return LinearAttention(spec, get, ops)
    return Mamba2(spec, get, ops) if spec.mamba2 is not None else ShortConvolution(get)


def _feed_forward(spec: ModelSpec, kind: LayerKind, get: Callable[[str], Any]) -> MLP | MixtureOfExperts | None:
    if not kind.feed_forward:
        return None
    beside = spec.experts is not None and spec.experts.beside
    return MixtureOfExperts(spec, get) if kind.experts and not beside else MLP(spec, get)


def _times(branch: Array, scale: nnx.Param[Array] | None) -> Array:
    """`branch` [T, hidden] times its learned factors [hidden], if it has any."""
    return branch if scale is None else branch * scale[...]


def _gated(branch: Array, gate: nnx.Param[Array] | None) -> Array:
    """`branch` [T, hidden] through its gate, [1] or [hidden], if it has one."""
    return branch if gate is None else branch * jnp.tanh(gate[...])


def _of_those_who_see(branch: Array, batch: StepBatch) -> Array:
    """`branch` [T, hidden], 0 for tokens that see no picture."""
    return jnp.where(batch.kv_length[:, None] > 0, branch, 0)
