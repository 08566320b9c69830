"""Gemma 1, 2 and 3 (text): norms of 1 + weight, scaled embeddings.

From Gemma 2 on there are norms before and behind each branch. "gelu" in Gemma's first configurations means the tanh
form, as `hidden_activation` says in later ones. Gemma 3 stores a soft cap of scores that its reference never applies.
"""

import math
from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.config.rope import FULL, SLIDING, rope, with_full_positions
from convert.families.family import Family, activation_named, layer_kinds, refuse, sizes, window
from convert.families.llama import BUFFERS, LAYER, QK_NORM, TENSORS, llama_spec
from jaxengine.architecture.model import Attention, Embedding, LayerKind, ModelSpec, Norm, QKNorm, Rope

SANDWICH = {
    **TENSORS,
    "layers.{i}.attention_post_norm": (LAYER + "post_attention_layernorm.weight",),
    "layers.{i}.mlp_norm": (LAYER + "pre_feedforward_layernorm.weight",),
    "layers.{i}.mlp_post_norm": (LAYER + "post_feedforward_layernorm.weight",),
}
HEAD_DIM = 256
GEMMA3_PATTERN = 6  # each sixth layer sees everything


def _gemma(config: Config, **switches: Any) -> ModelSpec:
    refuse(config, use_bidirectional_attention=False)
    key = config.spelled("hidden_activation", "hidden_act")
    act = activation_named(config, key, config.text("hidden_activation", _first_activation(config)))
    hidden = sizes(config, head_dim=HEAD_DIM)["hidden_size"]
    return llama_spec(
        config,
        head_dim=HEAD_DIM,
        tied=True,
        norm=Norm("rms_plus_one", config.number("rms_norm_eps", 1e-6)),
        activation=act,
        embedding=Embedding(scale=math.sqrt(hidden)),
        **switches,
    )


def _first_activation(config: Config) -> str:
    name = config.text("hidden_act", "gelu") if config.text("model_type") == "gemma" else "gelu"
    return "gelu_pytorch_tanh" if name == "gelu" else name


def _scale(config: Config) -> float:
    scalar = config.number("query_pre_attn_scalar", 256.0)
    if scalar == 0:
        raise config.error("query_pre_attn_scalar", "must be positive")
    return scalar**-0.5


def _gemma2(config: Config) -> ModelSpec:
    softcap = _softcap(config, "attn_logit_softcapping", 50.0)
    spec = _gemma(config, block="sandwich", attention=Attention(softcap=softcap))
    full = replace(spec.kinds[0], scale=_scale(config))
    narrow = replace(full, window=window(config, spec.max_positions, 4096))
    kinds = layer_kinds(config, spec.num_layers, full, narrow, lambda layer: layer % 2 == 0)
    head = replace(spec.head, softcap=_softcap(config, "final_logit_softcapping", 30.0))
    return replace(spec, kinds=kinds, head=head)


def _softcap(config: Config, key: str, default: float | None) -> float:
    """The soft cap; 0 where the configuration says null."""
    return 0.0 if config.values.get(key, default) is None else config.number(key, default)


def _gemma3(config: Config) -> ModelSpec:
    spec = _gemma(with_full_positions(config), block="sandwich", attention=Attention(qk_norm=QKNorm("rms_plus_one")))
    full = LayerKind(rope(config, spec.head_dim, theta=1e6, layers=FULL), scale=_scale(config))
    narrow = replace(full, rope=_local_rope(config, spec.head_dim), window=window(config, spec.max_positions, 4096))
    pattern = config.integer("sliding_window_pattern", GEMMA3_PATTERN)
    kinds = layer_kinds(config, spec.num_layers, full, narrow, lambda layer: (layer + 1) % pattern != 0)
    head = replace(spec.head, softcap=_softcap(config, "final_logit_softcapping", None))
    return replace(spec, kinds=kinds, head=head)


def _local_rope(config: Config, head_dim: int) -> Rope:
    """Rotary positions of the sliding layers, of which earlier configurations have the base alone."""
    if config.get("rope_local_base_freq") is not None:
        return Rope(theta=config.number("rope_local_base_freq"))
    if config.section("rope_parameters") is None:
        return Rope()
    return rope(config, head_dim, layers=SLIDING)


GEMMA = Family(_gemma, TENSORS, ignore=BUFFERS)
GEMMA2 = Family(_gemma2, SANDWICH, ignore=BUFFERS)
GEMMA3 = Family(_gemma3, {**SANDWICH, "layers.{i}.qk_norm": QK_NORM}, ignore=BUFFERS)
