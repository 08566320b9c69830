"""Qwen3-Next and Qwen 3.5 as llama.cpp's converter writes them, see `tiny_gguf`."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def linear_metadata(config: dict[str, Any]) -> dict[str, Any]:
    if "linear_num_value_heads" not in config:
        return {}
    own = {"rope.dimension_sections": [1, 1, 0, 0]} if config["model_type"] != "qwen3_next" else {}
    return own | {
        "attention.value_length": config["head_dim"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": config["layer_types"].index("full_attention") + 1,
    }


def stored_linear(
    name: str, values: np.ndarray, config: dict[str, Any], early: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """early: what makes queries, keys, values and gates of Qwen3-Next stays one tensor."""
    if name.endswith("gate_up_proj"):
        for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
            yield name.replace("gate_up", part) + ".weight", half
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", values
    elif "in_proj_qkvz" in name and not early:
        yield from _apart(name, values, config)
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        yield name, values + 1
    else:
        values = values if config["model_type"] == "qwen3_next" else _in_turn(name, values, config)
        values = -np.exp(values) if name.endswith("A_log") else values.squeeze(1) if "conv1d" in name else values
        yield name.replace(".dt_bias", ".dt_proj.bias"), values


def _apart(name: str, values: np.ndarray, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Each key head's rows q, k, v, z, as q ‖ k ‖ v of all and z of all."""
    key_heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    each = values.reshape(key_heads, -1, values.shape[1])
    of_values = (each.shape[1] - 2 * key_dim) // 2
    parts = np.split(each, np.cumsum([key_dim, key_dim, of_values]), axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    yield name.replace("qkvz", "qkv"), np.concatenate([q, k, v])
    yield name.replace("qkvz", "z"), z


def _in_turn(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """The first value heads of all key heads, then the second ones."""
    if "linear_attn" not in name or name.endswith(".norm.weight"):
        return values
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if "out_proj" in name:
        return np.ascontiguousarray(_in_turn("linear_attn.in_proj_z", values.T, config).T)
    before = 2 * key_heads * config["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0
    heads = values[before:].reshape(key_heads, value_heads // key_heads, -1)
    turned = heads.swapaxes(0, 1).reshape(-1, *values.shape[1:])
    return np.concatenate([values[:before], turned])
