"""MiniMax M2: norms over all heads' queries and keys, half of each head rotated, experts chosen as DeepSeek's are."""

from convert.config.config import Config
from convert.families.family import Family, refuse, with_experts
from convert.families.llama import BUFFERS, LAYER, QK_NORM, llama_spec
from convert.families.mixtral import EXPERTS
from jaxengine.architecture.model import Attention, Experts, ModelSpec, QKNorm

MINIMAX_TENSORS = {
    **EXPERTS,
    "layers.{i}.qk_norm": QK_NORM,
    "layers.{i}.router_choice_bias": (LAYER + "block_sparse_moe.e_score_correction_bias",),
}


def _minimax_m2(config: Config) -> ModelSpec:
    refuse(config, scoring_func="sigmoid", use_routing_bias=True, qk_norm_type="per_layer", shared_intermediate_size=0)
    head_dim = config.integer("head_dim", 128)
    part = config.integer("rotary_dim", head_dim) / head_dim
    attention = Attention(qk_norm=QKNorm("rms", "projection"))
    spec = llama_spec(config, theta=5e6, part=part, head_dim=head_dim, attention=attention)
    experts = Experts(
        count=config.integer(config.spelled("num_local_experts", "num_experts"), 256),
        used=config.integer("num_experts_per_tok", 8),
        ffn_size=spec.ffn_size,
        routing="sigmoid",
        renormalise=True,
        choice_bias=True,
    )
    return with_experts(spec, experts)


MINIMAX_M2 = Family(_minimax_m2, MINIMAX_TENSORS, ignore=BUFFERS)
