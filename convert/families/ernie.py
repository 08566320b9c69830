"""ERNIE 4.5: a Llama with interleaved rotation; and with experts, which a learned number for each helps to choose."""

from convert.config.config import Config
from convert.families.family import Family, refuse, with_experts
from convert.families.glm import DEEPSEEK_EXPERTS
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Experts, ModelSpec

ERNIE_EXPERTS = {
    **DEEPSEEK_EXPERTS,
    "layers.{i}.router_choice_bias": (LAYER + "mlp.moe_statics.e_score_correction_bias",),
}
DRAFTING = r"\bmtp"  # layers that draft are not read


def _ernie(config: Config, head_dim: int | None = 128) -> ModelSpec:
    biased = config.flag("use_bias", False)
    biases = {"qkv_bias": biased, "out_bias": biased, "mlp_bias": biased}
    return llama_spec(config, theta=500000.0, head_dim=head_dim, eps=1e-5, tied=True, **biases)


def _ernie_moe(config: Config) -> ModelSpec:
    refuse(config, moe_norm_min=1e-12)  # what a sum of weights is at least; none is so small
    spec, width = _ernie(config, head_dim=None), config.integer("moe_intermediate_size", 1536)
    if spec.mlp_bias:
        raise config.error("use_bias", "other than false is not supported with experts")
    experts = Experts(
        count=config.integer("moe_num_experts", 64),
        used=config.integer("moe_k", 6),
        ffn_size=width,
        renormalise=True,
        shared_ffn_size=width * config.integer("moe_num_shared_experts", 2, least=0),
        shared_gate=False,
        choice_bias=True,
    )
    first, step = config.integer("moe_layer_start_index", 1, least=0), config.integer("moe_layer_interval", 1)
    key = "moe_layer_end_index"
    last = spec.num_layers - 1 if config.get(key) in (None, -1) else config.integer(key, least=0)
    return with_experts(spec, experts, lambda layer: first <= layer <= last and (layer + 1) % step == 0)


ERNIE = Family(_ernie, TENSORS, Layout(interleaved=True), ignore=BUFFERS)
ERNIE_MOE = Family(_ernie_moe, ERNIE_EXPERTS, Layout(interleaved=True, bias_as_row=True), ignore=(*BUFFERS, DRAFTING))
