"""OLMo 1 to 3 and OLMoE: a Llama with other norms.

OLMo 1 has norms without weights and clamps queries, keys and values. From OLMo 2 on norms stand behind each branch
only, and those of queries and keys are over all heads together; OLMo 3 adds windows, and scales the positions of the
other layers alone. OLMoE has OLMo 2's norms of queries and keys, and experts.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.config.rope import SLIDING, rope, with_full_positions
from convert.families.family import Family, layer_kinds, refuse, window, with_experts
from convert.families.llama import BUFFERS, LAYER, QK_NORM, TENSORS, llama_spec
from convert.families.qwen import EXPERTS
from jaxengine.architecture.model import Attention, Experts, LayerKind, ModelSpec, Norm, QKNorm, Rope

OLMO2_TENSORS = {
    **TENSORS,
    "layers.{i}.attention_norm": (LAYER + "post_attention_layernorm.weight",),
    "layers.{i}.mlp_norm": (LAYER + "post_feedforward_layernorm.weight",),
    "layers.{i}.qk_norm": QK_NORM,
}
NORMALISED = Attention(qk_norm=QKNorm("rms", "projection"))
OLMO3_PATTERN = 4  # each fourth layer sees everything
OLMO3_THETA = 500000.0


def _olmo(config: Config) -> ModelSpec:
    clip = 0.0 if config.get("clip_qkv") is None else config.number("clip_qkv")
    return llama_spec(config, norm=Norm("layer", 1e-5, weight=False), attention=Attention(clip=clip))


def _olmo2(config: Config, theta: float = 10000.0) -> ModelSpec:
    return llama_spec(config, theta=theta, eps=1e-5, block="branch_norm", attention=NORMALISED)


def _olmo3(config: Config) -> ModelSpec:
    spec = _olmo2(with_full_positions(config), OLMO3_THETA)
    full, narrow = spec.kinds[0], LayerKind(_unscaled(config, spec), window(config, spec.max_positions, 4096))
    kinds = layer_kinds(config, spec.num_layers, full, narrow, lambda layer: (layer + 1) % OLMO3_PATTERN != 0)
    return replace(spec, kinds=kinds)


def _unscaled(config: Config, spec: ModelSpec) -> Rope:
    """Rotary positions of the layers with a window, which only later configurations spell out."""
    ropes, scaled = config.section("rope_parameters"), spec.kinds[0].rope
    if ropes is not None and ropes.section(SLIDING) is not None:
        return rope(config, spec.head_dim, theta=OLMO3_THETA, layers=SLIDING)
    return Rope(theta=scaled.theta if scaled else OLMO3_THETA)


def _olmoe(config: Config) -> ModelSpec:
    refuse(config, clip_qkv=None)
    spec = llama_spec(config, eps=1e-5, attention=NORMALISED)
    experts = Experts(
        count=config.integer(config.spelled("num_experts", "num_local_experts"), 64),
        used=config.integer("num_experts_per_tok", 8),
        ffn_size=spec.ffn_size,
        renormalise=config.flag("norm_topk_prob", False),
    )
    return with_experts(spec, experts)


OLMO = Family(_olmo, TENSORS, ignore=BUFFERS)
OLMO2 = Family(_olmo2, OLMO2_TENSORS, ignore=BUFFERS)
OLMO3 = Family(_olmo3, OLMO2_TENSORS, ignore=BUFFERS)
OLMOE = Family(_olmoe, {**EXPERTS, "layers.{i}.qk_norm": QK_NORM}, ignore=BUFFERS)
