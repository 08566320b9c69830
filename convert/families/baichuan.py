"""Baichuan and Baichuan 2: a Llama with fused q, k and v; the 13B have ALiBi, Baichuan 2 a head of unit rows.

These models were released with code of their own, so two things show only in which keys a configuration has: a 13B has
no `max_position_embeddings`; Baichuan 2 has a vocabulary of 125696 or, where that was extended, a `z_loss_weight`.
"""

from convert.config.config import Config
from convert.families.family import Family, activation, alibi_slopes, sizes
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, Head, LayerKind, ModelSpec, Norm

BAICHUAN2_VOCAB = 125696
PACKED = {**TENSORS, "layers.{i}.qkv": (LAYER + "self_attn.W_pack.weight",)}


def _spec(config: Config) -> ModelSpec:
    if config.get("max_position_embeddings") is not None:
        return llama_spec(config)
    fields = sizes(config)
    return ModelSpec(
        **fields,
        norm=Norm("rms", config.number("rms_norm_eps", 1e-6)),
        kinds=(LayerKind(rope=None),),
        attention=Attention(alibi=alibi_slopes(fields["num_heads"])),
        activation=activation(config),
        head=Head(tied=config.flag("tie_word_embeddings", False)),
    )


def baichuan(config: Config) -> Family:
    unit_head = config.get("vocab_size") == BAICHUAN2_VOCAB or config.get("z_loss_weight") is not None
    return Family(_spec, PACKED, Layout(unit_head=unit_head), ignore=BUFFERS)
