"""GLM 4: a Llama with interleaved rotation of half of each head; later with norms behind each branch too.

GLM 4.5 to 4.7 have DeepSeek's experts instead, behind a few layers without, and rotate as a Llama. So has dots.llm1.
"""

from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.families.family import Family, layer_kinds, window, with_experts
from convert.families.llama import BUFFERS, LAYER, QK_NORM, TENSORS, llama_spec
from convert.families.qwen import EXPERTS
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, Experts, ModelSpec, QKNorm

GLM_TENSORS = {**TENSORS, "layers.{i}.gate_up": (LAYER + "mlp.gate_up_proj.weight",)}
SANDWICH = {
    **GLM_TENSORS,
    "layers.{i}.attention_post_norm": (LAYER + "post_self_attn_layernorm.weight",),
    "layers.{i}.mlp_post_norm": (LAYER + "post_mlp_layernorm.weight",),
}

DEEPSEEK_EXPERTS = {
    **EXPERTS,
    "layers.{i}.qk_norm": QK_NORM,
    "layers.{i}.router_choice_bias": (LAYER + "mlp.gate.e_score_correction_bias",),
    "layers.{i}.shared_gate_up": tuple(f"{LAYER}mlp.shared_experts.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.shared_down": (LAYER + "mlp.shared_experts.down_proj.weight",),
}


def _glm(config: Config) -> ModelSpec:
    biased = config.flag("attention_bias", True)
    return llama_spec(config, part=0.5, head_dim=128, eps=1.5625e-07, qkv_bias=biased, out_bias=False)


def _glm4(config: Config) -> ModelSpec:
    return replace(_glm(config), block="sandwich")


def deepseek_experts(config: Config, **silent: Any) -> Experts:
    """The experts of DeepSeek V3. `silent` counts where the configuration is so."""
    width = config.integer("moe_intermediate_size", silent.get("moe_intermediate_size"))
    return Experts(
        count=config.integer("n_routed_experts", silent.get("n_routed_experts")),
        used=config.integer("num_experts_per_tok", silent.get("num_experts_per_tok")),
        ffn_size=width,
        routing="sigmoid",
        renormalise=config.flag("norm_topk_prob", silent.get("norm_topk_prob", True)),
        shared_ffn_size=width * config.integer("n_shared_experts", silent.get("n_shared_experts", 1), least=0),
        shared_gate=False,
        scale=config.number("routed_scaling_factor", silent.get("routed_scaling_factor", 1.0)),
        choice_bias=True,
        groups=config.integer("n_group", silent.get("n_group", 1)),
        used_groups=config.integer("topk_group", silent.get("topk_group", 1)),
    )


def _behind_dense(spec: ModelSpec, config: Config, experts: Experts, dense: int) -> ModelSpec:
    """`dense` first layers, where the configuration does not say how many, have no experts."""
    first = config.integer("first_k_dense_replace", dense, least=0)
    return with_experts(spec, experts, lambda layer: layer >= first)


def _glm4_moe(config: Config) -> ModelSpec:
    norm = QKNorm("rms") if config.flag("use_qk_norm", False) else None
    spec = llama_spec(config, part=0.5, eps=1e-5, attention=Attention(qk_norm=norm), out_bias=False)
    return _behind_dense(spec, config, deepseek_experts(config), dense=1)


def _dots(config: Config) -> ModelSpec:
    spec = llama_spec(config, attention=Attention(qk_norm=QKNorm("rms")))
    first = config.integer("max_window_layers", 62, least=0)
    full, narrow = spec.kinds[0], replace(spec.kinds[0], window=window(config, spec.max_positions, 4096))
    kinds = layer_kinds(config, spec.num_layers, full, narrow, lambda layer: layer >= first)
    experts = deepseek_experts(config, norm_topk_prob=False)
    return _behind_dense(replace(spec, kinds=kinds), config, experts, dense=0)


DOTS = Family(_dots, DEEPSEEK_EXPERTS, ignore=BUFFERS)
GLM = Family(_glm, GLM_TENSORS, Layout(interleaved=True), ignore=BUFFERS)
GLM4_MOE = Family(_glm4_moe, DEEPSEEK_EXPERTS, ignore=BUFFERS, drafting="num_nextn_predict_layers")
GLM4 = Family(_glm4, SANDWICH, Layout(interleaved=True), ignore=BUFFERS)
