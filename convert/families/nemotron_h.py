"""Nemotron-H and Nemotron 3 Nano: layers of one branch each, which is Mamba 2, attention without positions, an MLP
without a gate, or experts of that kind.

Time steps are clamped to `time_step_limit`, as in the authors' kernels and in vLLM. transformers clamps them to
`time_step_min`, which says how training drew their biases. Modules that draft (`mtp.…`) are not read.
"""

from convert.config.config import Config
from convert.config.rope import FULL
from convert.families.family import Family, activation_named, refuse, sizes
from convert.families.mamba2 import LINEAR, mamba2_tensors, time_steps
from jaxengine.architecture.model import Experts, Head, LayerKind, Mamba2, ModelSpec, Norm

LAYER = "backbone.layers.{i}."
MIXER = LAYER + "mixer."
TENSORS = {
    "embedding": ("backbone.embeddings.weight",),
    "layers.{i}.attention_norm": (LAYER + "norm.weight",),
    "layers.{i}.qkv": tuple(f"{MIXER}{x}_proj.weight" for x in "qkv"),
    "layers.{i}.out": (MIXER + "o_proj.weight",),
    **mamba2_tensors(MIXER),
    "layers.{i}.mlp_norm": (LAYER + "norm.weight",),
    "layers.{i}.gate_up": (MIXER + "up_proj.weight",),
    "layers.{i}.down": (MIXER + "down_proj.weight",),
    "layers.{i}.router": (MIXER + "gate.weight",),
    "layers.{i}.router_choice_bias": (MIXER + "gate.e_score_correction_bias",),
    "layers.{i}.experts_gate_up": (MIXER + "experts.{e}.up_proj.weight",),
    "layers.{i}.experts_down": (MIXER + "experts.{e}.down_proj.weight",),
    "layers.{i}.shared_gate_up": (MIXER + "shared_experts.up_proj.weight",),
    "layers.{i}.shared_down": (MIXER + "shared_experts.down_proj.weight",),
    "final_norm": ("backbone.norm_f.weight",),
    "head": ("lm_head.weight",),
}
MAMBA = LayerKind(None, mixer="recurrence", feed_forward=False)
ATTENTION = LayerKind(None, feed_forward=False)
MLP = LayerKind(None, mixer="none")
EXPERTS = LayerKind(None, mixer="none", experts=True)
TYPES = {LINEAR: MAMBA, "mamba": MAMBA, FULL: ATTENTION, "attention": ATTENTION, "mlp": MLP, "moe": EXPERTS}
LETTERS = {"M": MAMBA, "*": ATTENTION, "-": MLP, "E": EXPERTS}


def _nemotron_h(config: Config) -> ModelSpec:
    refuse(config, mamba_hidden_act="silu", residual_in_fp32=False, sliding_window=None, moe_latent_size=None)
    kinds = _kinds(config)
    config = Config({**config.values, "num_hidden_layers": len(kinds)}, config.where)
    fields = sizes(config, head_dim=128)
    return ModelSpec(
        **fields,
        norm=Norm("rms", config.number("layer_norm_epsilon", 1e-5)),
        kinds=kinds,
        activation=activation_named(config, "mlp_hidden_act", config.text("mlp_hidden_act", "relu2")),
        gated=False,
        experts=_experts(config) if EXPERTS in kinds else None,
        mamba2=_mamba2(config) if MAMBA in kinds else None,
        head=Head(tied=config.flag("tie_word_embeddings", False)),
        mlp_bias=config.flag("mlp_bias", False),
    )


def _kinds(config: Config) -> tuple[LayerKind, ...]:
    """Of each layer, by its type or by its letter."""
    key = config.spelled("layers_block_type", "layer_types", "hybrid_override_pattern")
    named, known = config.get(key), LETTERS if key == "hybrid_override_pattern" else TYPES
    if not isinstance(named, str if known is LETTERS else list) or not named:
        raise config.error(key, f"must name each layer: {', '.join(known)}")
    if not all(map(known.__contains__, map(str, named))):
        raise config.error(key, f"must consist of {', '.join(known)}")
    return tuple(known[each] for each in named)


def _mamba2(config: Config) -> Mamba2:
    bias, (least, most) = config.flag("use_bias", False), time_steps(config)
    return Mamba2(
        heads=config.integer("mamba_num_heads", 128),
        head_dim=config.integer("mamba_head_dim", 64),
        groups=config.integer(config.spelled("n_groups", "mamba_n_groups"), 8),
        size=config.integer("ssm_state_size", 128),
        kernel=config.integer(config.spelled("conv_kernel", "mamba_d_conv"), 4),
        least_step=least,
        most_step=most,
        bias=bias,
        out_bias=bias,
        conv_bias=config.flag(config.spelled("use_conv_bias", "mamba_conv_bias"), True),
    )


def _experts(config: Config) -> Experts:
    return Experts(
        count=config.integer(config.spelled("n_routed_experts", "num_local_experts"), 8),
        used=config.integer("num_experts_per_tok", 2),
        ffn_size=config.integer("moe_intermediate_size", 7688),
        routing="sigmoid",
        renormalise=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        choice_bias=True,
        groups=config.integer("n_group", 1),
        used_groups=config.integer("topk_group", 1),
        shared_ffn_size=config.integer("moe_shared_expert_intermediate_size", 7688),
        shared_gate=False,
    )


NEMOTRON_H = Family(_nemotron_h, TENSORS, renames=((r"^(backbone\.)?model\.", "backbone."),), ignore=(r"^mtp\.",))
