"""OLMo 2: norms behind each branch only; those of queries and keys are over all heads together."""

from convert.config.config import Config
from convert.families.family import Family
from convert.families.llama import BUFFERS, LAYER, QK_NORM, TENSORS, llama_spec
from jaxengine.architecture.model import Attention, ModelSpec, QKNorm

OLMO2_TENSORS = {
    **TENSORS,
    "layers.{i}.attention_norm": (LAYER + "post_attention_layernorm.weight",),
    "layers.{i}.mlp_norm": (LAYER + "post_feedforward_layernorm.weight",),
    "layers.{i}.qk_norm": QK_NORM,
}


def _olmo2(config: Config) -> ModelSpec:
    return llama_spec(config, eps=1e-5, block="branch_norm", attention=Attention(qk_norm=QKNorm("rms", "projection")))


OLMO2 = Family(_olmo2, OLMO2_TENSORS, ignore=BUFFERS)
