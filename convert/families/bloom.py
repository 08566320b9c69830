"""BLOOM and BLOOMZ: ALiBi, and a norm right behind the embedding."""

from convert.config.config import Config
from convert.families.family import Family, alibi_slopes, refuse, sizes
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, Embedding, Head, LayerKind, ModelSpec, Norm

LAYER = "transformer.h.{i}."
TENSORS = {
    "embedding": ("transformer.word_embeddings.weight",),
    "embedding_norm": ("transformer.word_embeddings_layernorm.weight",),
    "layers.{i}.attention_norm": (LAYER + "input_layernorm.weight",),
    "layers.{i}.qkv": (LAYER + "self_attention.query_key_value.weight",),
    "layers.{i}.out": (LAYER + "self_attention.dense.weight",),
    "layers.{i}.mlp_norm": (LAYER + "post_attention_layernorm.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.dense_h_to_4h.weight",),
    "layers.{i}.down": (LAYER + "mlp.dense_4h_to_h.weight",),
    "final_norm": ("transformer.ln_f.weight",),
    "head": ("lm_head.weight",),
}


def _spec(config: Config) -> ModelSpec:
    refuse(config, apply_residual_connection_post_layernorm=False)
    fields = sizes(config, positions=2048)
    return ModelSpec(
        **fields,
        norm=Norm("layer", config.number("layer_norm_epsilon", 1e-5)),
        kinds=(LayerKind(rope=None),),
        attention=Attention(alibi=alibi_slopes(fields["num_heads"])),
        activation="gelu_tanh",
        gated=False,
        embedding=Embedding(norm=True),
        head=Head(tied=config.flag("tie_word_embeddings", True)),
    )


BLOOM = Family(_spec, TENSORS, Layout(qkv="grouped"))
