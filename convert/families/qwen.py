"""Qwen 2 and 2.5, whose upper layers may have a window; Qwen 3, with norms of each head's queries and keys; MoE.

Windows of the MoE are refused: releases of transformers differ in which layers have one, and no checkpoint has any.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.config.rope import SLIDING
from convert.families.family import Family, layer_kinds, refuse, window, with_experts
from convert.families.llama import BUFFERS, LAYER, QK_NORM, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, Experts, ModelSpec, QKNorm

MAX_WINDOW_LAYERS = 28  # the configurations' default


def sliding(spec: ModelSpec, config: Config) -> ModelSpec:
    """`spec` with windows on layers from `max_window_layers` on, where the configuration uses them at all."""
    if not config.flag("use_sliding_window", False):
        types = config.get("layer_types") or []
        if not isinstance(types, list) or SLIDING in types:
            raise config.error("layer_types", f"must be a list without {SLIDING} where use_sliding_window is not true")
        return spec
    first = config.integer("max_window_layers", MAX_WINDOW_LAYERS, least=0)
    full, narrow = spec.kinds[0], replace(spec.kinds[0], window=window(config, spec.max_positions, 4096))
    return replace(spec, kinds=layer_kinds(config, spec.num_layers, full, narrow, lambda layer: layer >= first))


def _qwen2(config: Config) -> ModelSpec:
    return sliding(llama_spec(config), config)


def _qwen3(config: Config) -> ModelSpec:
    return sliding(llama_spec(config, head_dim=128, attention=Attention(qk_norm=QKNorm("rms"))), config)


def with_qwen_experts(spec: ModelSpec, config: Config, shared: int = 0) -> ModelSpec:
    """Experts in each `decoder_sparse_step`-th layer that `mlp_only_layers` does not name."""
    refuse(config, use_sliding_window=False)
    step, dense = config.integer("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise config.error("mlp_only_layers", "must be a list of layer numbers")
    experts = Experts(
        count=config.integer(config.spelled("num_experts", "num_local_experts")),
        used=config.integer("num_experts_per_tok"),
        ffn_size=config.integer("moe_intermediate_size"),
        renormalise=config.flag("norm_topk_prob", False),
        shared_ffn_size=shared,
    )
    return with_experts(spec, experts, lambda layer: layer not in dense and (layer + 1) % step == 0)


def _qwen2_moe(config: Config) -> ModelSpec:
    return with_qwen_experts(_qwen2(config), config, config.integer("shared_expert_intermediate_size"))


def _qwen3_moe(config: Config) -> ModelSpec:
    return with_qwen_experts(_qwen3(config), config)


def _qwen3_vl_moe(config: Config) -> ModelSpec:
    """The weights of the chosen experts add up to one, and no key says so."""
    return _qwen3_moe(Config({**config.values, "norm_topk_prob": True}, config.where))


EXPERTS = {
    **TENSORS,
    "layers.{i}.router": (LAYER + "mlp.gate.weight",),
    "layers.{i}.experts_gate_up": tuple(f"{LAYER}mlp.experts.{{e}}.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.experts_down": (LAYER + "mlp.experts.{e}.down_proj.weight",),
    "layers.{i}.shared_gate": (LAYER + "mlp.shared_expert_gate.weight",),
    "layers.{i}.shared_gate_up": tuple(f"{LAYER}mlp.shared_expert.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.shared_down": (LAYER + "mlp.shared_expert.down_proj.weight",),
}
QWEN2_MOE = Family(_qwen2_moe, EXPERTS, ignore=BUFFERS)
QWEN3_MOE = Family(_qwen3_moe, {**EXPERTS, "layers.{i}.qk_norm": QK_NORM}, ignore=BUFFERS)
QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    spec=_qwen3_vl_moe,
    tensors={
        **QWEN3_MOE.tensors,
        **{f"layers.{{i}}.experts_{name}": (f"{LAYER}mlp.experts.{name}_proj",) for name in ("gate_up", "down")},
    },
    layout=Layout(joint_experts="turned"),
    apart={name: EXPERTS[name] for name in ("layers.{i}.experts_gate_up", "layers.{i}.experts_down")},
)
QWEN2 = Family(_qwen2, TENSORS, ignore=BUFFERS)
QWEN3 = Family(_qwen3, {**TENSORS, "layers.{i}.qk_norm": QK_NORM}, ignore=BUFFERS)
