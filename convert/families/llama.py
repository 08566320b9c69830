"""Llama 1 to 3, Code Llama, Vicuna, SmolLM2 and others of that shape; Mistral, which adds a window; Ministral, whose
layers may differ in it; Ministral 3, which scales queries by their position.

`pretraining_tp` is ignored: it only splits matrix products, the result is the same.
"""

from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.config.rope import longest, rope
from convert.families.family import Family, activation, layer_kinds, sizes, window
from jaxengine.architecture.model import Head, LayerKind, ModelSpec, Norm, QueryScale

LAYER = "model.layers.{i}."
TENSORS = {
    "embedding": ("model.embed_tokens.weight",),
    "layers.{i}.attention_norm": (LAYER + "input_layernorm.weight",),
    "layers.{i}.qkv": tuple(f"{LAYER}self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.out": (LAYER + "self_attn.o_proj.weight",),
    "layers.{i}.mlp_norm": (LAYER + "post_attention_layernorm.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "layers.{i}.down": (LAYER + "mlp.down_proj.weight",),
    "final_norm": ("model.norm.weight",),
    "head": ("lm_head.weight",),
}
QK_NORM = tuple(f"{LAYER}self_attn.{x}_norm.weight" for x in "qk")
MINISTRAL3_POSITIONS = {  # of configurations that say nothing of them
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
BUFFERS = (r"rotary_emb\.inv_freq$",)


def llama_spec(
    config: Config,
    *,
    theta: float = 10000.0,
    part: float | None = None,
    head_dim: int | None = None,
    eps: float = 1e-6,
    tied: bool = False,
    **switches: Any,
) -> ModelSpec:
    """A Llama, but for `switches` of `ModelSpec`. The named arguments count where the configuration is silent."""
    fields = sizes(config, head_dim=head_dim)
    rotary = rope(config, fields["head_dim"], theta=theta, part=part)
    ready = {
        "max_positions": longest(config, rotary, fields["max_positions"]),
        "norm": Norm("rms", config.number("rms_norm_eps", eps)),
        "kinds": (LayerKind(rotary),),
        "activation": activation(config),
        "head": Head(tied=config.flag("tie_word_embeddings", tied)),
        "qkv_bias": config.flag("attention_bias", False),
        "out_bias": config.flag("attention_bias", False),
        "mlp_bias": config.flag("mlp_bias", False),
    }
    return ModelSpec(**{**fields, **ready, **switches})


def with_window(spec: ModelSpec, config: Config, default: int | None = None) -> ModelSpec:
    """`spec` with the configuration's window on all layers; `default` where it is silent."""
    size = window(config, spec.max_positions, default)
    return replace(spec, kinds=(replace(spec.kinds[0], window=size),))


def _ministral(config: Config) -> ModelSpec:
    spec = llama_spec(config)
    full, narrow = spec.kinds[0], with_window(spec, config, 4096).kinds[0]
    return replace(spec, kinds=layer_kinds(config, spec.num_layers, full, narrow, lambda _: True))


def _ministral3(config: Config) -> ModelSpec:
    positions = config.section("rope_parameters")
    if positions is None:
        positions = Config(MINISTRAL3_POSITIONS, config.where)
        config = Config({**config.values, "rope_parameters": MINISTRAL3_POSITIONS}, config.where)
    spec = with_window(llama_spec(config, theta=1e6, head_dim=128, eps=1e-5), config)
    if positions.get("llama_4_scaling_beta") is None:
        return spec
    length = positions.integer("original_max_position_embeddings")
    scale = QueryScale(positions.number("llama_4_scaling_beta"), length)
    return replace(spec, attention=replace(spec.attention, query_scale=scale))


LLAMA = Family(llama_spec, TENSORS, ignore=BUFFERS)
MISTRAL = Family(lambda config: with_window(llama_spec(config), config, 4096), TENSORS, ignore=BUFFERS)
MINISTRAL = Family(_ministral, TENSORS, ignore=BUFFERS)
MINISTRAL3 = Family(_ministral3, TENSORS, ignore=BUFFERS)
