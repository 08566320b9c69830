"""Models with latent attention as llama.cpp's converter writes them, see `tiny_gguf`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

SIGMOID, SOFTMAX = 2, 1


def latent_metadata(config: dict[str, Any], early: bool) -> dict[str, Any]:
    """early: the sizes of heads as the checkpoint has them, not those of what is cached; experts in no groups."""
    if "kv_lora_rank" not in config:
        return {}
    rank, turning = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + turning, config["v_head_dim"]
    sizes = {"attention.key_length": key, "attention.value_length": value}
    if not early:
        sizes = {f"{name}_mla": size for name, size in sizes.items()}
        sizes |= {"attention.key_length": rank + turning, "attention.value_length": rank}
    judged = {"deepseek_v2": SOFTMAX, "deepseek_v3": SIGMOID}.get(config["model_type"])
    all_dims = (config["rope_parameters"] or {}).get("mscale_all_dim")
    return {
        **sizes,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.head_count_kv": config["num_attention_heads"] if early else 1,
        "rope.dimension_count": turning,
        "rope.scaling.yarn_log_multiplier": None if all_dims is None else 0.1 * all_dims,
        "expert_gating_func": judged,
        "expert_weights_norm": config.get("norm_topk_prob") or None,
        "expert_count": config.get("n_routed_experts"),
        **({"expert_group_count": None, "expert_group_used_count": None} if early else {}),
        "leading_dense_block_count": config.get("first_k_dense_replace", config["num_hidden_layers"]),
        "expert_shared_count": config.get("n_shared_experts") or 0,
    }


def stored_latent(name: str, values: np.ndarray, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """What makes keys of latents and what makes values, each a stack of the heads' matrices, that of keys turned."""
    of_head = values.reshape(config["num_attention_heads"], -1, values.shape[1])
    keys, values = np.split(of_head, [config["qk_nope_head_dim"]], axis=1)
    yield name.replace("kv_b_proj", "k_b_proj"), np.ascontiguousarray(keys.swapaxes(1, 2))
    yield name.replace("kv_b_proj", "v_b_proj"), np.ascontiguousarray(values)
