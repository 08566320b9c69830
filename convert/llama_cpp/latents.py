"""How llama.cpp stores models with latent attention, all as `deepseek2`: DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash
and Youtu.

What makes keys and values of latents is one matrix in older files, which do not say either how experts are grouped, and
two in newer ones, that of keys turned. Yarn has one scale in them, since `mscale` is `mscale_all_dim` in these
models.
Source: https://github.com/ggml-org/llama.cpp/blob/master/conversion/deepseek.py and src/models/deepseek2.cpp there
"""

from collections.abc import Mapping
from typing import Any

from convert.config.config import Config
from convert.formats.gguf import GgufFile

LATENT_KEYS = {
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
}
TOGETHER = "blk.0.attn_kv_b.weight"
APART = {"layers.{i}.k_up": ("blk.{i}.attn_k_b.weight",), "layers.{i}.v_up": ("blk.{i}.attn_v_b.weight",)}
SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func
GROUPS = {160: (8, 3), 256: (8, 4)}  # DeepSeek V2's and V3's by number of experts: how many there are, and are used


def latent_fields(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """The fields of the entry of `deepseek2` that depend on the file.

    Raises:
        CheckpointError: sizes that do not fit each other, or what no model here has.
    """
    if metadata.number("attention.temperature_scale", 0.0):
        raise metadata.error("attention.temperature_scale", "is not supported")
    together, model_type = TOGETHER in file.tensors, _model_type(file, metadata)
    method = {"topk_method": "group_limited_greedy"} if model_type == "deepseek_v2" else {}
    return {
        "model_type": model_type,
        "fixed": {**_sizes(metadata), **_silent(metadata), **method},
        "tensors": {} if together else APART,
        "layout": {"latents_apart": not together},
    }


def latent_scaling(metadata: Config) -> Mapping[str, float]:
    """Of yarn, where the file has any: a tenth of it is stored."""
    scale = round(10 * metadata.number("rope.scaling.yarn_log_multiplier", 0.0), 6)  # of f32
    return {"mscale": scale, "mscale_all_dim": scale} if scale else {}


def _model_type(file: GgufFile, metadata: Config) -> str:
    """Models without experts are Youtu's. Where the file does not say how experts are judged, it is told by a bias of
    the choice: GLM 4.7 Flash has one, and DeepSeek V2 has none.
    """
    if not metadata.integer("expert_count", 0, least=0):
        return "youtu"
    judged = metadata.integer("expert_gating_func", 0, least=0)
    if judged not in (0, SOFTMAX, SIGMOID):
        raise metadata.error("expert_gating_func", f"must be {SOFTMAX} (softmax) or {SIGMOID} (sigmoid)")
    biased = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
    return "deepseek_v3" if judged == SIGMOID or (not judged and biased) else "deepseek_v2"


def _sizes(metadata: Config) -> dict[str, int]:
    """Of a head, as if its keys were made of latents; the other sizes of newer files are those of what is cached."""
    key, value = (metadata.spelled(f"attention.{x}_length_mla", f"attention.{x}_length") for x in ("key", "value"))
    turning, whole = metadata.integer("rope.dimension_count"), metadata.integer(key)
    if whole <= turning:
        raise metadata.error(key, f"must be above rope.dimension_count {turning}")
    return {"qk_nope_head_dim": whole - turning, "v_head_dim": metadata.integer(value)}


def _silent(metadata: Config) -> dict[str, Any]:
    """What counts where the file is silent, as it does in llama.cpp, but for how experts are grouped."""
    groups, used = GROUPS.get(metadata.integer("expert_count", 0, least=0), (1, 1))
    return {
        "q_lora_rank": None,
        "n_group": groups,
        "topk_group": used,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "n_shared_experts": 0,
        "first_k_dense_replace": 0,
    }
