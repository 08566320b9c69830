"""Models whose layers keep states, in a GGUF file: which layers do is told by the tensors of each.

Source: conversion/granite.py, lfm2.py, nemotron.py, falcon_h1.py and mamba.py in
https://github.com/ggml-org/llama.cpp
"""

from typing import Any

from convert.config.config import Config
from convert.config.rope import FULL
from convert.families.lfm2 import CONV
from convert.families.mamba2 import LINEAR
from convert.formats.gguf import GgufFile
from convert.llama_cpp.layers import by_layer, holding, layer_count, ratio

STEP = {"layers.{i}.mamba_step": ("blk.{i}.ssm_dt.bias",)}
MAMBA2 = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
}
LFM2 = {"norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"}
LFM2_EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "num_dense_layers": "leading_dense_block_count",
}
GRANITE_MLP = {
    "layers.{i}.gate_up": ("blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight"),
    "layers.{i}.down": ("blk.{i}.ffn_down.weight",),
}
NEMOTRON = {
    "mamba_num_heads": "ssm.time_step_rank",
    "n_groups": "ssm.group_count",
    "ssm_state_size": "ssm.state_size",
    "conv_kernel": "ssm.conv_kernel",
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "moe_latent_size": "moe_latent_size",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
NEMOTRON_TENSORS = {
    **STEP,
    "layers.{i}.router": ("blk.{i}.ffn_gate_inp.weight",),
    "layers.{i}.router_choice_bias": ("blk.{i}.exp_probs_b.bias",),
    "layers.{i}.experts_gate_up": ("blk.{i}.ffn_up_exps.weight",),
    "layers.{i}.experts_down": ("blk.{i}.ffn_down_exps.weight",),
    "layers.{i}.shared_gate_up": ("blk.{i}.ffn_up_shexp.weight",),
    "layers.{i}.shared_down": ("blk.{i}.ffn_down_shexp.weight",),
}
FALCON_H1 = {**MAMBA2, "mamba_d_ssm": "ssm.inner_size"}
FALCON_H1_TENSORS = {**STEP, "layers.{i}.mlp_norm": ("blk.{i}.ffn_norm",)}
CONVOLVES, SCANS = "blk.{i}.shortconv.conv.weight", "blk.{i}.ssm_in.weight"
ATTENDS, ROUTES = "blk.{i}.attn_q.weight", "blk.{i}.ffn_gate_inp.weight"


def lfm2(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """Fields of the `Architecture` that are `file`'s own."""
    count = layer_count(file, metadata)
    return {
        "fixed": {
            "layer_types": [CONV if each else FULL for each in holding(file, count, CONVOLVES)],
            "num_key_value_heads": max(by_layer(metadata, "attention.head_count_kv", count)),
            "conv_bias": _any(file, ".shortconv.conv.bias"),
            "block_auto_adjust_ff_dim": False,  # the metadata has the width that came of it
        }
    }


def granite_hybrid(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """Of Granite 4. Bamba, which llama.cpp stores under the same name, is refused: it has no scale of its own."""
    if metadata.get("attention.scale") is None:
        raise metadata.error("attention.scale", "is missing: a Bamba, whose GGUF files are not supported")
    count = layer_count(file, metadata)
    experts = metadata.integer("expert_count", 0, least=0)
    width = 0 if experts else metadata.integer("feed_forward_length")
    rotates = metadata.flag("rope.scaling.finetuned", True)  # what llama.cpp asks, by this name
    return {
        "fixed": {
            "layer_types": [LINEAR if each else FULL for each in holding(file, count, SCANS)],
            "num_key_value_heads": max(by_layer(metadata, "attention.head_count_kv", count)),
            "num_local_experts": 0,
            "shared_intermediate_size": width,
            "position_embedding_type": "rope" if rotates else "nope",
            "mamba_expand": ratio(metadata, "ssm.inner_size", "embedding_length"),
            "mamba_conv_bias": _any(file, ".ssm_conv1d.bias"),
            "mamba_proj_bias": _any(file, ".ssm_in.bias"),
        }
    }


def nemotron_h(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """Of Nemotron-H and of Nemotron 3 Nano."""
    count = layer_count(file, metadata)
    kinds = zip(*(holding(file, count, name) for name in (SCANS, ATTENDS, ROUTES)), strict=True)
    types = [LINEAR if scans else FULL if attends else "moe" if routes else "mlp" for scans, attends, routes in kinds]
    if metadata.integer("expert_group_count", 1, least=0) > 1 and metadata.get("expert_group_used_count") is None:
        raise metadata.error("expert_group_count", "is of no use: nothing says how many groups are used")
    return {
        "fixed": {
            "layers_block_type": types,
            "num_key_value_heads": max(by_layer(metadata, "attention.head_count_kv", count)),
            "intermediate_size": max(1, *by_layer(metadata, "feed_forward_length", count)),
            "mamba_head_dim": ratio(metadata, "ssm.inner_size", "ssm.time_step_rank"),
            "use_conv_bias": _any(file, ".ssm_conv1d.bias"),
            "use_bias": _any(file, ".ssm_in.bias"),
            "mlp_bias": _any(file, ".ffn_up.bias"),
        }
    }


def _any(file: GgufFile, suffix: str) -> bool:
    return any(name.endswith(suffix) for name in file.tensors)
