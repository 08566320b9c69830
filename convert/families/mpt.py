"""MPT: ALiBi, LayerNorm without bias, and the options of MosaicML's own code that checkpoints use."""

from convert.config.config import Config
from convert.families.family import Family, alibi_slopes, refuse, sizes
from jaxengine.architecture.model import Attention, Embedding, Head, LayerKind, ModelSpec, Norm

LAYER = "transformer.blocks.{i}."
TENSORS = {
    "embedding": ("transformer.wte.weight",),
    "layers.{i}.attention_norm": (LAYER + "norm_1.weight",),
    "layers.{i}.qkv": (LAYER + "attn.Wqkv.weight",),
    "layers.{i}.out": (LAYER + "attn.out_proj.weight",),
    "layers.{i}.mlp_norm": (LAYER + "norm_2.weight",),
    "layers.{i}.gate_up": (LAYER + "ffn.up_proj.weight",),
    "layers.{i}.down": (LAYER + "ffn.down_proj.weight",),
    "final_norm": ("transformer.norm_f.weight",),
    "head": ("lm_head.weight",),
}


def _spec(config: Config) -> ModelSpec:
    attention = config.section("attn_config") or Config({}, config.where)
    refuse(config, embedding_fraction=1.0, logit_scale=None)
    refuse(attention, alibi=True, prefix_lm=False, qk_ln=False, attn_type="multihead_attention")
    if "layernorm" not in (norm := config.text("norm_type", "low_precision_layernorm")):
        raise config.error("norm_type", f"{norm} is not supported")
    fields = sizes(config, positions=2048)
    scale = None if attention.get("softmax_scale") is None else attention.number("softmax_scale")
    return ModelSpec(
        **{**fields, "ffn_size": fields["hidden_size"] * config.integer("expansion_ratio", 4)},
        norm=Norm("layer", config.number("layer_norm_epsilon", 1e-5)),
        kinds=(LayerKind(rope=None, scale=scale),),
        attention=Attention(
            alibi=alibi_slopes(fields["num_heads"], attention.number("alibi_bias_max", 8.0)),
            clip=0.0 if attention.get("clip_qkv") is None else attention.number("clip_qkv"),
        ),
        activation="gelu",
        gated=False,
        embedding=Embedding(),
        head=Head(tied=config.flag("tie_word_embeddings", True)),
    )


MPT = Family(_spec, TENSORS)
