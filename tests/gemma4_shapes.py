"""Gemma 4's published shapes, for what needs no weights."""

from dataclasses import replace

from jaxengine.architecture.model import (
    Attention,
    Embedding,
    Experts,
    Head,
    LayerKind,
    ModelSpec,
    Norm,
    QKNorm,
    Rope,
)

GLOBAL_ROPE = Rope("proportional", 1e6, turning=64)


def _kinds(window: int, kv_heads: int, period: int, layers: int) -> tuple[LayerKind, ...]:
    sliding = LayerKind(window=window, scale=1.0)
    wide = LayerKind(GLOBAL_ROPE, scale=1.0, kv_heads=kv_heads, head_dim=512)
    return (*[sliding] * (period - 1), wide) * (layers // period)


GEMMA4_31B = ModelSpec(
    vocab_size=262144,
    hidden_size=5376,
    num_layers=60,
    num_heads=32,
    num_kv_heads=16,
    head_dim=256,
    ffn_size=21504,
    max_positions=262144,
    norm=Norm("rms", 1e-6),
    block="sandwich",
    kinds=_kinds(1024, 4, 6, 6),
    attention=Attention(qk_norm=QKNorm("rms"), value_norm=True),
    activation="gelu_tanh",
    embedding=Embedding(scale=5376**0.5),
    head=Head(tied=True, softcap=30.0),
    output_scale=True,
)
GEMMA4_26B_A4B = replace(
    GEMMA4_31B,
    hidden_size=2816,
    num_layers=30,
    num_heads=16,
    num_kv_heads=8,
    ffn_size=2112,
    kinds=tuple(replace(kind, experts=True) for kind in _kinds(1024, 2, 6, 6)),
    embedding=Embedding(scale=2816**0.5),
    experts=Experts(128, 8, 704, renormalise=True, learned_scale=True, beside=True),
)


def _reading(kinds: tuple[LayerKind, ...], shared: int, ffn_size: int = 0) -> tuple[LayerKind, ...]:
    """`kinds`, of which the last `shared` read the keys of the last layer of their kind before them."""
    own = kinds[: len(kinds) - shared]
    last = {kind: layer for layer, kind in enumerate(own)}
    return (*own, *(replace(kind, reads=last[kind], ffn_size=ffn_size) for kind in kinds[len(own) :]))


GEMMA4_E2B = replace(
    GEMMA4_31B,
    hidden_size=1536,
    num_layers=35,
    num_heads=8,
    num_kv_heads=1,
    ffn_size=6144,
    max_positions=131072,
    kinds=_reading(_kinds(512, 0, 5, 35), 20, 12288),
    embedding=Embedding(scale=1536**0.5, layer_width=256),
)
GEMMA4_E4B = replace(
    GEMMA4_E2B,
    hidden_size=2560,
    num_layers=42,
    num_kv_heads=2,
    ffn_size=10240,
    kinds=_reading(_kinds(512, 0, 6, 42), 18),
    embedding=Embedding(scale=2560**0.5, layer_width=256),
)
