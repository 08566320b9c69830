"""Falcon 7B, 11B, 40B, 180B and RW, which differ in norms, key/value heads and positions.

RefinedWeb and RefinedWebModel are earlier names of the family. RW adds its ALiBi before scores are scaled, and rounds
it to bfloat16.
"""

import ml_dtypes
import numpy as np

from convert.config.config import Config
from convert.config.rope import longest, rope
from convert.families.bloom import TENSORS as BLOOM_TENSORS
from convert.families.family import Family, activation, alibi_slopes, sizes
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, Block, Head, LayerKind, ModelSpec, Norm

TENSORS = {name: tensors for name, tensors in BLOOM_TENSORS.items() if name != "embedding_norm"}
RENAMES = ((r"\.ln_attn\.", ".input_layernorm."), (r"\.ln_mlp\.", ".post_attention_layernorm."))


def _spec(config: Config) -> ModelSpec:
    fields = sizes(config, positions=2048)
    fields["num_kv_heads"] = _kv_heads(config, fields["num_kv_heads"], fields["num_heads"])
    alibi = config.flag("alibi", False)
    rotary = None if alibi else rope(config, fields["head_dim"])
    if rotary is not None:
        fields["max_positions"] = longest(config, rotary, fields["max_positions"])
    return ModelSpec(
        **fields,
        norm=Norm("layer", config.number("layer_norm_epsilon", 1e-5)),
        block=_block(config),
        kinds=(LayerKind(rotary),),
        attention=Attention(alibi=_slopes(fields["num_heads"]) if alibi else (), alibi_rounded=alibi),
        activation=activation(config, "gelu"),
        gated=False,
        head=Head(tied=config.flag("tie_word_embeddings", True)),
    )


def _new_architecture(config: Config) -> bool:
    return config.flag("new_decoder_architecture", config.get("model_type") == "RefinedWeb")


def _kv_heads(config: Config, named: int, heads: int) -> int:
    if _new_architecture(config):
        return named
    return 1 if config.flag("multi_query", True) else heads


def _block(config: Config) -> Block:
    parallel = config.flag("parallel_attn", True)
    if not _new_architecture(config):
        return "parallel" if parallel else "sequential"
    if not parallel:
        raise config.error("parallel_attn", "must be true where new_decoder_architecture is")
    return "parallel_norms" if config.integer("num_ln_in_parallel_attn", 2) == 2 else "parallel"


def _slopes(heads: int) -> tuple[float, ...]:
    return tuple(float(slope) for slope in np.asarray(alibi_slopes(heads)).astype(ml_dtypes.bfloat16))


FALCON = Family(_spec, TENSORS, Layout(qkv="grouped"), RENAMES)
