"""DBRX: clipped projections, LayerNorm without bias, and experts that lie in one tensor per projection."""

from dataclasses import replace

from convert.config.config import Config
from convert.config.rope import rope
from convert.families.family import Family, activation_named, sizes, with_experts
from jaxengine.architecture.model import Activation, Attention, Experts, Head, LayerKind, ModelSpec, Norm

LAYER = "transformer.blocks.{i}."
MLP = LAYER + "ffn.experts.mlp."
TENSORS = {
    "embedding": ("transformer.wte.weight",),
    "layers.{i}.attention_norm": (LAYER + "norm_attn_norm.norm_1.weight",),
    "layers.{i}.qkv": (LAYER + "norm_attn_norm.attn.Wqkv.weight",),
    "layers.{i}.out": (LAYER + "norm_attn_norm.attn.out_proj.weight",),
    "layers.{i}.mlp_norm": (LAYER + "norm_attn_norm.norm_2.weight",),
    "layers.{i}.router": (LAYER + "ffn.router.layer.weight",),
    "layers.{i}.experts_gate_up": (MLP + "w1", MLP + "v1"),
    "layers.{i}.experts_down": (MLP + "w2",),
    "final_norm": ("transformer.norm_f.weight",),
    "head": ("lm_head.weight",),
}


def _spec(config: Config) -> ModelSpec:
    attention = config.section("attn_config") or Config({}, config.where)
    fields = sizes(config, num_kv_heads=attention.integer("kv_n_heads", 1))
    rotary = rope(config, fields["head_dim"])
    if attention.get("rope_theta") is not None:  # the key that DBRX's own code reads; transformers 5 reads another
        rotary = replace(rotary, theta=attention.number("rope_theta"))
    ffn = config.section("ffn_config") or Config({}, config.where)
    experts = _experts(ffn)
    spec = ModelSpec(
        **{**fields, "ffn_size": experts.ffn_size},
        norm=Norm("layer", 1e-5),
        kinds=(LayerKind(rotary),),
        attention=Attention(clip=0.0 if attention.get("clip_qkv") is None else attention.number("clip_qkv")),
        activation=_activation(ffn),
        head=Head(tied=config.flag("tie_word_embeddings", False)),
    )
    return with_experts(spec, experts)


def _experts(ffn: Config) -> Experts:
    power = ffn.values.get("moe_normalize_expert_weights", 1.0)
    if power not in (None, 1):
        raise ffn.error("moe_normalize_expert_weights", "must be 1 or null")
    return Experts(
        count=ffn.integer("moe_num_experts", 4),
        used=ffn.integer("moe_top_k", 1),
        ffn_size=ffn.integer("ffn_hidden_size", 3584),
        renormalise=power is not None,
    )


def _activation(ffn: Config) -> Activation:
    function = ffn.section("ffn_act_fn") or Config({}, ffn.where)
    return activation_named(function, "name", function.text("name", "silu"))


DBRX = Family(_spec, TENSORS)
