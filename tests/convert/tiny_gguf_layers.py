"""What llama.cpp's converter does to checkpoints whose layers are of several kinds: metadata of each layer, states.

Source: conversion/gemma.py, lfm2.py, granite.py, nemotron.py, falcon_h1.py and mamba.py in
https://github.com/ggml-org/llama.cpp
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

ARCHITECTURES = {
    "falcon_h1": "falcon-h1",
    "gemma4_text": "gemma4",
    "granitemoehybrid": "granitehybrid",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "nemotron_h": "nemotron_h",
}
PAIRED = ("granitemoehybrid", "nemotron_h")  # the latter rotates nothing, and its converter does not ask
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
Tensors = dict[str, np.ndarray]


def architecture(config: dict[str, Any]) -> str:
    """A Nemotron with experts is another architecture."""
    experts = config["model_type"] == "nemotron_h" and "moe" in config["layers_block_type"]
    return "nemotron_h_moe" if experts else ARCHITECTURES[config["model_type"]]


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """What is added to the metadata of any model, or replaces it. None: left out."""
    family = config["model_type"]
    if family == "gemma4_text":
        return _gemma4(config)
    if family.startswith("lfm2"):
        return _lfm2(config)
    if family == "granitemoehybrid":
        return _granite(config)
    return _nemotron(config) if family == "nemotron_h" else _falcon_h1(config)


def _gemma4(config: dict[str, Any]) -> dict[str, Any]:
    types, shared = config["layer_types"], config["num_kv_shared_layers"]
    wide = config["per_layer_config"][str(types.index(FULL))]["head_dim"]
    sliding_heads = config["num_key_value_heads"]
    fewer = sliding_heads if not config["attention_k_eq_v"] else 1
    width, own = config["intermediate_size"], len(types) - shared
    found = {
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"] or 0,
        "attention.sliding_window_pattern": [each == SLIDING for each in types],
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": config["head_dim"],
        "expert_used_count": config.get("top_k_experts"),
    }
    if config["use_double_wide_mlp"]:
        found["feed_forward_length"] = [width] * own + [2 * width] * shared
    if config["attention_k_eq_v"]:
        found["attention.head_count_kv"] = [sliding_heads if each == SLIDING else fewer for each in types]
    return found


def _lfm2(config: dict[str, Any]) -> dict[str, Any]:
    heads = [config["num_key_value_heads"] if each == FULL else 0 for each in config["layer_types"]]
    width = config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim"):
        multiple = config["block_multiple_of"]
        width = -(-int(config["block_ffn_dim_multiplier"] * int(2 * width / 3)) // multiple) * multiple
    return {
        "attention.head_count_kv": heads,
        "feed_forward_length": width,
        "vocab_size": config["vocab_size"],
        "shortconv.l_cache": config["conv_L_cache"],
        "leading_dense_block_count": config.get("num_dense_layers"),
        "expert_gating_func": 2 if "num_experts" in config else None,  # sigmoid
        "expert_weights_scale": None,
        "expert_weights_norm": None,
        "rope.dimension_count": None,
    }


def _granite(config: dict[str, Any]) -> dict[str, Any]:
    attends = [each == FULL for each in config["layer_types"]]
    return {
        **_mamba2(config, "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "attention.head_count_kv": [config["num_key_value_heads"] if each else 0 for each in attends],
        "expert_count": config["num_local_experts"],
        "rope.scaling.finetuned": all(attends),
        "attention.key_length": None,
    }


def _nemotron(config: dict[str, Any]) -> dict[str, Any]:
    types = config["layers_block_type"]
    experts = "moe" in types
    width = config["moe_intermediate_size" if experts else "intermediate_size"]
    found = {
        **_mamba2(config, "mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel"),
        "block_count": len(types),
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "attention.head_count_kv": [config["num_key_value_heads"] if each == FULL else 0 for each in types],
        "feed_forward_length": [width if each in ("mlp", "moe") else 0 for each in types],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
    }
    of_experts = dict.fromkeys(f"expert_{each}" for each in ("count", "used_count", "feed_forward_length"))
    of_experts |= dict.fromkeys(f"expert_{each}" for each in ("shared_feed_forward_length", "shared_count"))
    of_experts |= dict.fromkeys(f"expert_{each}" for each in ("group_count", "group_used_count", "weights_scale"))
    return found if experts else found | of_experts | {"expert_weights_norm": None}


def _falcon_h1(config: dict[str, Any]) -> dict[str, Any]:
    return {
        **_mamba2(config, "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
        "ssm.inner_size": config["mamba_d_ssm"],
        "attention.scale": None,
        "embedding_scale": None,
        "rope.dimension_count": None,
        "vocab_size": config["vocab_size"],
    }


def _mamba2(config: dict[str, Any], heads: str, groups: str, state: str, kernel: str) -> dict[str, Any]:
    keys = {"time_step_rank": heads, "group_count": groups, "state_size": state, "conv_kernel": kernel}
    return {f"ssm.{theirs}": config[key] for theirs, key in keys.items()}


def extra(config: dict[str, Any]) -> Tensors:
    """Tensors that the converter makes: what divides the frequencies of Gemma 4's global layers."""
    if config["model_type"] != "gemma4_text":
        return {}
    wide, rope = metadata(config)["attention.key_length"], config["rope_parameters"][FULL]
    turning = int(wide * rope["partial_rotary_factor"] / 2)
    return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (wide // 2 - turning), np.float32)}


def stored(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """`tensors` by names that the `gguf` library knows, laid out as a file has them, before experts are stacked."""
    change = {"gemma4_text": _gemma4_tensors, "falcon_h1": _multiplied}.get(config["model_type"], _as_it_is)
    found = {name: _of_states(name, values, config) for name, values in change(tensors, config)}
    return {_renamed(name, config): values for name, values in found.items()}


def _as_it_is(tensors: Tensors, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    yield from tensors.items()


def _gemma4_tensors(tensors: Tensors, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    for name, values in tensors.items():
        layer = re.search(r"\d+", name)
        if name.endswith("router.scale"):
            name = f"blk.{layer and layer[0]}.ffn_gate_inp.scale"
        elif name.endswith("per_expert_scale"):
            name = f"blk.{layer and layer[0]}.ffn_down_exps.scale"
        elif name.endswith("layer_scalar") or ".experts." in name:
            name += ".weight"
        yield name, values


def _multiplied(tensors: Tensors, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Falcon-H1's multipliers are in its weights."""
    inside = config["attention_in_multiplier"]
    factors = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * inside,
        "q_proj": inside,
        "v_proj": inside,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": _of_sections(config),
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    for name, values in tensors.items():
        factor = next((factors[part] for part in name.split(".") if part in factors), 1.0)
        yield name, (values * factor).astype(np.float32)


def _of_sections(config: dict[str, Any]) -> np.ndarray:
    """Of gates, inputs, B, C and time steps: [rows, 1]."""
    inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = (inner, inner, shared, shared, config["mamba_n_heads"])
    return config["ssm_in_multiplier"] * np.repeat(config["ssm_multipliers"], sizes)[:, None]


def _of_states(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    if name.endswith(".conv.conv.weight"):
        return values.squeeze(1)
    if name.endswith(("mamba.D", "mixer.D", ".A_log")):
        return values[:, None]
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return values.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
    return values


def _renamed(name: str, config: dict[str, Any]) -> str:
    if re.search(r"\.(mamba|mixer)\.dt_bias$", name):
        return re.sub(r"dt_bias$", "dt_proj.bias", name)
    if name.endswith("e_score_correction_bias"):
        return name.replace("e_score_correction_bias", "e_score_correction.bias")
    if name.endswith(".expert_bias"):
        return f"{name}.bias"
    if config["model_type"] == "nemotron_h":
        return re.sub(r"^backbone\.layers\.(\d+)\.mixer\.experts", r"model.layers.\1.mlp.experts", name)
    if config["model_type"] == "granitemoehybrid" and not config["num_local_experts"]:
        return name.replace("shared_mlp.output_linear", "mlp.down_proj")
    if config["model_type"] == "lfm2_moe":
        return re.sub(r"^model\.(layers\.\d+\.feed_forward\.experts)", r"\1", name)
    return name
