"""Qwen3-Next and Qwen 3.5: three of four layers have linear attention, the others attention with a gate of its output.

Both are published with a module that drafts, `mtp`, whose layer has attention, see `convert/drafters/mtp.py`.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.config.rope import FULL
from convert.families.family import Family, refuse
from convert.families.llama import BUFFERS, LAYER, QK_NORM, TENSORS, llama_spec
from convert.families.qwen import EXPERTS, with_qwen_experts
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, LayerKind, LinearAttention, ModelSpec, Norm, QKNorm

LINEAR = "linear_attention"
INTERVAL = 4  # of the layers with attention, where a configuration does not say it
DRAFTING = (r"^mtp\.",)
OF_THE_WHOLE = ((r"^model\.language_model\.", "model."),)  # names that transformers keeps where it saves a text part
MIXER = LAYER + "linear_attn."
HYBRID = {
    "layers.{i}.qk_norm": QK_NORM,
    "layers.{i}.head_gate": (LAYER + "self_attn.q_proj.weight",),
    "layers.{i}.linear_conv": (MIXER + "conv1d.weight",),
    "layers.{i}.linear_decay": (MIXER + "A_log",),
    "layers.{i}.linear_step": (MIXER + "dt_bias",),
    "layers.{i}.linear_norm": (MIXER + "norm.weight",),
    "layers.{i}.linear_out": (MIXER + "out_proj.weight",),
}
JOINT = {
    **dict.fromkeys(("layers.{i}.linear_in", "layers.{i}.linear_gate"), (MIXER + "in_proj_qkvz.weight",) * 2),
    "layers.{i}.linear_rates": (MIXER + "in_proj_ba.weight",),
}
APART = {
    "layers.{i}.linear_in": (MIXER + "in_proj_qkv.weight",),
    "layers.{i}.linear_gate": (MIXER + "in_proj_z.weight",),
    "layers.{i}.linear_rates": tuple(f"{MIXER}in_proj_{x}.weight" for x in "ba"),
}
JOINT_EXPERTS = {f"layers.{{i}}.experts_{name}": (f"{LAYER}mlp.experts.{name}_proj",) for name in ("gate_up", "down")}


def _hybrid(config: Config) -> ModelSpec:
    refuse(config, attention_bias=False, hidden_act="silu")
    spec = llama_spec(config, part=0.25, head_dim=256)
    full = spec.kinds[0]
    linear = LinearAttention(
        heads=config.integer("linear_num_value_heads", 32),
        key_heads=config.integer("linear_num_key_heads", 16),
        key_dim=config.integer("linear_key_head_dim", 128),
        value_dim=config.integer("linear_value_head_dim", 128),
        kernel=config.integer("linear_conv_kernel_dim", 4),
    )
    return replace(
        spec,
        norm=Norm("rms_plus_one", spec.norm.eps),
        attention=Attention(qk_norm=QKNorm("rms_plus_one"), output_gate=True),
        linear_attention=linear,
        kinds=tuple(
            full if attends else LayerKind(None, mixer="recurrence") for attends in attending(config, spec.num_layers)
        ),
    )


def attending(config: Config, count: int) -> list[bool]:
    """Of each layer, whether it has attention: as `layer_types` says, else each `full_attention_interval`-th."""
    types = config.get("layer_types")
    if types is None:
        interval = config.integer("full_attention_interval", INTERVAL)
        return [(layer + 1) % interval == 0 for layer in range(count)]
    if not isinstance(types, list) or len(types) != count or not all(each in (FULL, LINEAR) for each in types):
        raise config.error("layer_types", f"must name {FULL} or {LINEAR} for each of {count} layers")
    return [each == FULL for each in types]


def _with_experts(config: Config) -> ModelSpec:
    """The weights of the chosen experts add up to one, unless the configuration denies it."""
    config = Config({"norm_topk_prob": True, **config.values}, config.where)
    return with_qwen_experts(_hybrid(config), config, config.integer("shared_expert_intermediate_size"))


LAYOUT = Layout(gated_queries=True)
QWEN3_5 = Family(_hybrid, {**TENSORS, **HYBRID, **APART}, LAYOUT, OF_THE_WHOLE, (*BUFFERS, *DRAFTING), module=True)
QWEN3_5_MOE = Family(
    _with_experts,
    {**EXPERTS, **HYBRID, **APART, **JOINT_EXPERTS},
    replace(LAYOUT, joint_experts="straight"),
    OF_THE_WHOLE,
    (*BUFFERS, *DRAFTING),
    apart={name: EXPERTS[name] for name in JOINT_EXPERTS},
    module=True,
)
QWEN3_NEXT = Family(_with_experts, {**EXPERTS, **HYBRID, **JOINT}, LAYOUT, ignore=(*BUFFERS, *DRAFTING), module=True)
