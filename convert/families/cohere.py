"""Command R, R+ and R7B: parallel branches, LayerNorm without bias, interleaved rotation, scaled logits.

Cohere 2 rotates on its sliding layers only; each fourth layer sees everything and knows no positions.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, layer_kinds, refuse, window
from convert.families.llama import BUFFERS, QK_NORM, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, Head, LayerKind, ModelSpec, Norm, QKNorm

PATTERN = 4


def _cohere(config: Config, theta: float = 500000.0) -> ModelSpec:
    return llama_spec(
        config,
        theta=theta,
        block="parallel",
        norm=Norm("layer", config.number("layer_norm_eps", 1e-5)),
        attention=Attention(qk_norm=QKNorm("layer") if config.flag("use_qk_norm", False) else None),
        head=Head(tied=config.flag("tie_word_embeddings", True), scale=config.number("logit_scale", 0.0625)),
    )


def _cohere2(config: Config) -> ModelSpec:
    refuse(config, use_qk_norm=False)
    spec = _cohere(config, theta=10000.0)
    full = LayerKind(rope=None)
    narrow = replace(spec.kinds[0], window=window(config, spec.max_positions, 4096))
    pattern = config.integer("sliding_window_pattern", PATTERN)
    kinds = layer_kinds(config, spec.num_layers, full, narrow, lambda layer: (layer + 1) % pattern != 0)
    return replace(spec, kinds=kinds)


LAYOUT = Layout(interleaved=True, norm_per_head=True)
COHERE = Family(_cohere, {**TENSORS, "layers.{i}.qk_norm": QK_NORM}, LAYOUT, ignore=BUFFERS)
COHERE2 = Family(_cohere2, TENSORS, LAYOUT, ignore=BUFFERS)
