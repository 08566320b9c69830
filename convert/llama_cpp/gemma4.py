"""Gemma 4 in a GGUF file: sliding and global layers, whose sizes are lists or keys of their own.

Pairs of a global head that stand still have a divisor of 1e30 in `rope_freqs.weight`; the others have 1. Layers that
attend to another's keys may have tensors for keys of their own, which nothing reads.
Source: Gemma4Model in https://github.com/ggml-org/llama.cpp/blob/master/conversion/gemma.py
"""

from typing import Any

from convert.config.config import Config
from convert.config.rope import FULL, SLIDING
from convert.errors import CheckpointError
from convert.formats.gguf import GgufFile
from convert.llama_cpp.layers import by_layer, layer_count

KEYS = {
    "head_dim": "attention.key_length_swa",
    "global_head_dim": "attention.key_length",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": "expert_count",
    "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
TENSORS = {
    "layers.{i}.router_norm": ("blk.{i}.ffn_gate_inp.scale",),
    "layers.{i}.router_scale": ("blk.{i}.ffn_down_exps.scale",),
    "layers.{i}.experts_gate_up": ("blk.{i}.ffn_gate_up_exps.weight",),
    "layers.{i}.experts_down": ("blk.{i}.ffn_down_exps.weight",),
    "layers.{i}.output_scale": ("blk.{i}.layer_output_scale.weight",),
}
APART = {"layers.{i}.experts_gate_up": ("blk.{i}.ffn_gate_exps.weight", "blk.{i}.ffn_up_exps.weight")}
ROUTER, GATE_EXPERTS = "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_exps.weight"
ROWS_BY_LAYER = "per_layer_token_embd.weight"
ROPE_FREQS = "rope_freqs.weight"
LOCAL_BASE = 10000.0  # where a file does not say
STILL = 1e30  # the divisor of a pair that does not turn


def gemma4(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """Fields of the `Architecture` that are `file`'s own."""
    count = layer_count(file, metadata)
    types = _types(metadata, count)
    own = count - metadata.integer("attention.shared_kv_layers", 0, least=0)
    if own < 1:
        raise metadata.error("attention.shared_kv_layers", f"must be less than the {count} layers")
    alike = [i for i in range(own) if types[i] == FULL and f"blk.{i}.attn_v.weight" not in file.tensors]
    apart = GATE_EXPERTS in file.tensors
    return {
        "fixed": {
            "layer_types": types,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": ROUTER in file.tensors,
            "attention_k_eq_v": bool(alike),
            "rope_parameters": _ropes(file, metadata),
            **({"vocab_size_per_layer_input": file.tensors[ROWS_BY_LAYER].shape[0]} if _has_rows(file) else {}),
            **_kv_heads(metadata, types),
            **_widths(metadata, count, own),
        },
        "tensors": {**TENSORS, **(APART if apart else {}), **{f"layers.{i}.qkv": _alike(i) for i in alike}},
        "layout": {} if apart else {"joint_experts": "straight"},
        "unread": tuple(rf"^blk\.{i}\.attn_(k|v|k_norm)\.weight$" for i in range(own, count)),
    }


def _alike(layer: int) -> tuple[str, ...]:
    """Of a layer whose keys are its values."""
    return tuple(f"blk.{layer}.attn_{x}.weight" for x in "qkk")


def _has_rows(file: GgufFile) -> bool:
    return ROWS_BY_LAYER in file.tensors


def _types(metadata: Config, count: int) -> list[str]:
    key = "attention.sliding_window_pattern"
    slides = metadata.get(key)
    if not isinstance(slides, list) or len(slides) != count or not all(type(each) is bool for each in slides):
        raise metadata.error(key, f"must say true or false of each of {count} layers")
    return [SLIDING if each else FULL for each in slides]


def _kv_heads(metadata: Config, types: list[str]) -> dict[str, int]:
    """One number of all layers, or of each; those of a type have the same."""
    key = "attention.head_count_kv"
    heads = by_layer(metadata, key, len(types))
    found: dict[str, int] = {}
    for each, number in zip(types, heads, strict=True):
        if found.setdefault(each, number) != number:
            raise metadata.error(key, f"must be the same for all layers of type {each}")
    some = next(iter(found.values()))
    return {
        "num_key_value_heads": found.get(SLIDING, some),
        "num_global_key_value_heads": found.get(FULL, some),
    }


def _widths(metadata: Config, count: int, own: int) -> dict[str, Any]:
    """MLPs of layers that attend to another's keys may be twice as wide."""
    widths = by_layer(metadata, "feed_forward_length", count)
    first, last = widths[0], widths[-1]
    if widths != [first] * own + [last] * (count - own) or last not in (first, 2 * first):
        raise metadata.error("feed_forward_length", f"must be one width of {own} layers, and it or its double behind")
    return {"intermediate_size": first, "use_double_wide_mlp": last != first}


def _ropes(file: GgufFile, metadata: Config) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base_swa", LOCAL_BASE)}
    if metadata.get("rope.dimension_count_swa") is not None:
        local["rotary_dim"] = metadata.integer("rope.dimension_count_swa")
    turning = {"rope_type": "proportional", "partial_rotary_factor": _turning(file)}
    return {FULL: {**turning, "rope_theta": metadata.number("rope.freq_base", 1e6)}, SLIDING: local}


def _turning(file: GgufFile) -> float:
    """The share of a global head's pairs that turns."""
    if ROPE_FREQS not in file.tensors:
        raise CheckpointError(f"{file.path.name}: lacks tensor {ROPE_FREQS!r}, which says what of a head turns")
    divisors = file.tensors[ROPE_FREQS].whole().ravel()
    turning = int((divisors == 1).sum())
    if not (divisors[:turning] == 1).all() or not (divisors[turning:] >= STILL * 0.99).all():
        raise CheckpointError(f"{file.path.name}: {ROPE_FREQS} must be ones, then {STILL:g} of pairs that stand still")
    return turning / len(divisors)
