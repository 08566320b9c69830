"""How llama.cpp stores models with linear attention: Qwen3-Next and Qwen 3.5.

What makes queries, keys and values of Qwen3-Next is apart from what makes gates, but in the first files, which keep the
checkpoint's tensor of both. Value heads of Qwen 3.5 stand in turn, see `LinearParts`; those of Qwen3-Next do not.
Source: https://github.com/ggml-org/llama.cpp/blob/master/conversion/qwen.py
"""

from collections.abc import Mapping
from typing import Any

from convert.config.config import Config
from convert.config.rope import FULL
from convert.families.qwen_hybrid import INTERVAL, LINEAR
from convert.formats.gguf import GgufFile
from convert.llama_cpp.layers import layer_count, ratio

LINEAR_KEYS = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "full_attention_interval": "full_attention_interval",
}
LINEAR_TENSORS: Mapping[str, tuple[str, ...]] = {"layers.{i}.linear_step": ("blk.{i}.ssm_dt.bias",)}
APART = {"layers.{i}.linear_in": ("blk.{i}.attn_qkv.weight",), "layers.{i}.linear_gate": ("blk.{i}.attn_gate.weight",)}
IN_TURN = {"value_heads_in_turn": True}
JOINT = ".ssm_in.weight"


def linear_fields(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """Fields of the `Architecture` that are `file`'s own.

    Raises:
        CheckpointError: sizes that do not fit each other.
    """
    width = ratio(metadata, "ssm.inner_size", "ssm.time_step_rank")
    sizes = {"linear_value_head_dim": width, "full_attention_interval": INTERVAL}
    return {"fixed": {**sizes, **_listed(file, metadata)}}


def qwen3_next_fields(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """The same of Qwen3-Next, whose first files have other tensors than later ones."""
    together = any(name.endswith(JOINT) for name in file.tensors)
    return {**linear_fields(file, metadata), "tensors": {} if together else APART}


def _listed(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """The kinds of layers of a file that llama.cpp itself has saved, which lists them."""
    recurrent = metadata.get("attention.recurrent_layers")
    if not isinstance(recurrent, list):
        return {}
    return {"layer_types": [LINEAR if each else FULL for each in recurrent[: layer_count(file, metadata)]]}
