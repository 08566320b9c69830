"""What a `ModelSpec` must be, whoever makes it: a converter, a file of ours, a test."""

import math
from typing import TYPE_CHECKING

from jaxengine.architecture.latent import Latent
from jaxengine.architecture.switches import Attention, Encoder, LayerKind
from jaxengine.architecture.vision import Vision

if TYPE_CHECKING:
    from jaxengine.architecture.model import ModelSpec

MAX_LAYERS = 4096  # with 10 million of them a plan took more than 100 s to say anything

MAX_WIDTH = 2**20  # numbers of a hidden state, and of all heads of a token; known models have less than a tenth of it
MAX_EXPERTS = 2**18  # of all layers
MAX_LEARNED = 2**24  # learned positions


def check_model(spec: "ModelSpec") -> None:
    """Raises ValueError, naming field, value and limit, where `spec` contradicts itself or is beyond all models."""
    attention = () if spec.state_space else ("num_heads", "num_kv_heads", "head_dim", "ffn_size")
    for name in ("vocab_size", "hidden_size", "num_layers", *attention, "max_positions"):
        if getattr(spec, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(spec, name)}")
    if spec.num_layers > MAX_LAYERS:
        raise ValueError(f"num_layers must be at most {MAX_LAYERS}, got {spec.num_layers}")
    _check_sizes(spec)
    if not 0 <= spec.head.tokens <= spec.vocab_size:
        raise ValueError(f"{spec.head.tokens} tokens in a vocabulary of {spec.vocab_size}")
    if spec.num_heads % max(1, spec.num_kv_heads):
        raise ValueError(f"num_heads {spec.num_heads} is not a multiple of num_kv_heads {spec.num_kv_heads}")
    if not 1 <= len(spec.kinds) <= spec.num_layers:
        raise ValueError(f"{len(spec.kinds)} kinds of layers for {spec.num_layers} layers")
    if spec.attention.alibi and len(spec.attention.alibi) != spec.num_heads:
        raise ValueError(f"{len(spec.attention.alibi)} alibi slopes for {spec.num_heads} heads")
    if spec.experts is None and any(kind.experts for kind in spec.kinds):
        raise ValueError("layers have experts, the model describes none")
    _check_mixers(spec)
    if spec.clamped_gate is not None and not spec.gated:
        raise ValueError("a clamped gate needs a gated MLP")
    if spec.encoder is not None:
        _check_encoder(spec, spec.encoder)
    if spec.vision is not None and spec.vision.token >= spec.vocab_size:
        raise ValueError(f"image token {spec.vision.token} is outside the vocabulary of {spec.vocab_size}")
    if spec.cross_layers and (spec.block != "sequential" or len(spec.cross_layers) == spec.num_layers):
        raise ValueError("layers that attend to pictures are sequential, and stand among others")
    if spec.vision is not None and spec.vision.cross:
        _check_seen(spec, spec.vision)
    if len(spec.cache_scales) not in (0, spec.num_layers):
        raise ValueError(f"cache_scales of {len(spec.cache_scales)} layers for {spec.num_layers} layers")
    if not all(0 < scale < math.inf for scales in spec.cache_scales for scale in scales):
        raise ValueError("cache_scales must be positive and finite")
    if spec.attention.latent is not None:
        _check_latent(spec, spec.attention, spec.attention.latent)
    for kind in spec.kinds:
        _check_heads(spec, kind)
        _check_rope(spec, kind)
    for layer in range(spec.num_layers) if any(kind.reads is not None for kind in spec.kinds) else ():
        _check_reads(spec, layer)


def _check_mixers(spec: "ModelSpec") -> None:
    if spec.recurrence is None and any(kind.recurrent for kind in spec.kinds):
        raise ValueError("layers keep states, and the model describes none")
    if sum(each is not None for each in (spec.linear_attention, spec.mamba2, spec.short_convolution)) > 1:
        raise ValueError("layers keep states of one kind, the model describes several")
    if not any(kind.attends for kind in spec.kinds):
        raise ValueError("a model has layers with attention among those without")
    if spec.recurrent_layers and spec.encoder is not None:
        raise ValueError("layers that keep states stand behind no encoder")
    for kind in spec.kinds:
        if (kind.mixer != "attention" or not kind.feed_forward) and spec.block_of(kind).startswith("parallel"):
            raise ValueError(f"a layer whose mixer is {kind.mixer}, or without an MLP, is not {spec.block_of(kind)}")
    if (spec.gate_scale, spec.mlp_scale) != (1, 1) and any(kind.experts for kind in spec.kinds):
        raise ValueError("what experts activate and add is not scaled")


def _check_heads(spec: "ModelSpec", kind: LayerKind) -> None:
    heads, dim = kind.kv_heads or spec.num_kv_heads, kind.head_dim or spec.head_dim
    if spec.num_heads % max(1, heads):
        raise ValueError(f"num_heads {spec.num_heads} is not a multiple of a layer's num_kv_heads {heads}")
    if (wide := spec.num_heads * dim) > MAX_WIDTH:
        raise ValueError(f"num_heads times a layer's head_dim must be at most {MAX_WIDTH}, got {wide}")
    if kind.ffn_size > MAX_WIDTH:
        raise ValueError(f"a layer's ffn_size must be at most {MAX_WIDTH}, got {kind.ffn_size}")
    if (kind.kv_heads or kind.head_dim) and (spec.encoder or spec.attention.alibi or spec.attention.relative):
        raise ValueError("layers with heads of their own have neither an encoder nor biases by distance")


def _check_reads(spec: "ModelSpec", layer: int) -> None:
    kind = spec.kind(layer)
    if kind.reads is None:
        return
    if not 0 <= kind.reads < layer:
        raise ValueError(f"layer {layer} reads the keys of layer {kind.reads}, which is not before it")
    source, qk_norm = spec.kind(kind.reads), spec.attention.qk_norm
    if source.reads is not None or source.cross is not None:
        raise ValueError(f"layer {layer} reads the keys of layer {kind.reads}, which has none of its own")
    alike = ("window", "kv_heads", "head_dim")
    if any(getattr(kind, name) != getattr(source, name) for name in alike):
        raise ValueError(f"layer {layer} reads the keys of layer {kind.reads}, whose window or heads differ")
    if spec.encoder or spec.attention.alibi or spec.attention.relative or spec.attention.sinks:
        raise ValueError("layers that read the keys of others have neither an encoder, nor biases, nor sinks")
    if spec.attention.query_scale or spec.attention.clip or (qk_norm and (qk_norm.over != "head" or qk_norm.bias)):
        raise ValueError("layers that read the keys of others have queries that are normalised head by head alone")


def _check_sizes(spec: "ModelSpec") -> None:
    """What is computed for each row of a matrix, before any is compared with a checkpoint's, stays small."""
    widths = {"hidden_size": spec.hidden_size, "num_heads times head_dim": spec.num_heads * spec.head_dim}
    if spec.recurrence is not None:
        widths["what a layer that keeps states makes of a token"] = spec.recurrence.width
    for name, width in widths.items():
        if width > MAX_WIDTH:
            raise ValueError(f"{name} must be at most {MAX_WIDTH}, got {width}")
    if spec.experts is not None and (experts := spec.num_layers * spec.experts.count) > MAX_EXPERTS:
        raise ValueError(f"experts of all layers must be at most {MAX_EXPERTS}, got {experts}")
    if spec.embedding.positions and spec.max_positions > MAX_LEARNED:
        raise ValueError(f"learned positions must be at most {MAX_LEARNED}, got {spec.max_positions}")


def _check_seen(spec: "ModelSpec", vision: Vision) -> None:
    if not spec.cross_layers:
        raise ValueError("no layer attends to the pictures that the model sees")
    seen = vision.row_size(spec.hidden_size)
    for kind in spec.kinds:
        if kind.cross is not None and (kind.cross.width or spec.hidden_size) != seen:
            raise ValueError(f"layers attend to rows of width {kind.cross.width}, and pictures have {seen}")


def _check_encoder(spec: "ModelSpec", encoder: Encoder) -> None:
    if not 1 <= encoder.num_layers <= MAX_LAYERS:
        raise ValueError(f"encoder num_layers must be 1 to {MAX_LAYERS}, got {encoder.num_layers}")
    if not 0 <= encoder.start_token < spec.vocab_size:
        raise ValueError(f"start_token {encoder.start_token} is outside the vocabulary of {spec.vocab_size}")
    if spec.block not in ("sequential", "post_norm") or len(spec.kinds) > 1:
        raise ValueError("behind an encoder, layers are sequential or post_norm, and of one kind")


def _check_latent(spec: "ModelSpec", attention: Attention, latent: Latent) -> None:
    if spec.head_dim != latent.head_dim:
        raise ValueError(f"head_dim {spec.head_dim} is not that of latent attention, {latent.head_dim}")
    if latent.rank > MAX_WIDTH or spec.num_heads * latent.value_dim > MAX_WIDTH:
        raise ValueError(f"latent rank and num_heads times value_dim must be at most {MAX_WIDTH}")
    if any(kind.rope is not None and kind.rope.dim != latent.rope_dim for kind in spec.kinds):
        raise ValueError(f"the rope of latent attention must turn its {latent.rope_dim} dimensions")
    if any(kind.mixer == "both" for kind in spec.kinds):
        raise ValueError("latent attention does not stand beside states in a layer")
    others = (attention.qk_norm, attention.clip, attention.relative, attention.query_scale)
    if any(others) or spec.encoder is not None or spec.cross_layers:
        raise ValueError(
            "latent attention has no norm of queries and keys, no clip, no relative positions, no scale "
            "of queries, and attends to nothing but the text"
        )


def _check_rope(spec: "ModelSpec", kind: LayerKind) -> None:
    if kind.rope is None:
        return
    head_dim = kind.head_dim or spec.head_dim
    dim = kind.rope.dim or head_dim
    if dim % 2:
        raise ValueError(f"head_dim {dim} must be even to rotate")
    if dim > head_dim:
        raise ValueError(f"rope dim {dim} is more than head_dim {head_dim}")
    if kind.rope.turning > dim // 2:
        raise ValueError(f"rope turns {kind.rope.turning} pairs of {dim // 2}")
    if kind.rope.axes is not None and sum(kind.rope.axes) != dim // 2:
        raise ValueError(f"rope axes {kind.rope.axes} must sum to the {dim // 2} pairs that rotate")
    for name in ("short_factors", "long_factors") if kind.rope.kind == "longrope" else ():
        if len(getattr(kind.rope, name)) != dim // 2:
            raise ValueError(f"rope {name} needs {dim // 2} entries, got {len(getattr(kind.rope, name))}")
