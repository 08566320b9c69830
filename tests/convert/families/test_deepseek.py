"""DeepSeek's configurations, and those of models of its shape."""

import math
from typing import Any

import pytest

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import family_of
from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model import ModelSpec
from jaxengine.capacity.roofline import kv_bytes_per_token
from tests.families.zoo import ZOO

KIMI_K2: dict[str, Any] = {  # as published, but for what does not count
    "model_type": "kimi_k2",
    "vocab_size": 163840,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    | {"original_max_position_embeddings": 4096, "beta_fast": 1.0},
}


def spec_of(values: dict[str, Any]) -> ModelSpec:
    config = Config(values, "config.json")
    return family_of(config).spec(config)


def test_kimi_k2_is_a_deepseek_v3_whose_cache_holds_576_numbers_a_layer_and_token() -> None:
    spec = spec_of(KIMI_K2)
    assert spec.attention.latent == Latent(512, 128, 64, 128, query_rank=1536)
    assert [spec.kind(layer).experts for layer in (0, 1, 60)] == [False, True, True]
    assert spec.kinds[0].scale == pytest.approx(192**-0.5 * (0.1 * math.log(32) + 1) ** 2)
    assert kv_bytes_per_token(spec, 2) == 61 * 576 * 2


def test_groups_of_experts_that_are_not_told_are_deepseek_v3_s() -> None:
    experts = spec_of({key: value for key, value in KIMI_K2.items() if key not in ("n_group", "topk_group")}).experts
    assert experts is not None and (experts.groups, experts.used_groups, experts.judges) == (8, 4, 2)


def test_queries_without_a_latent_are_said_by_null_and_not_by_silence() -> None:
    silent, null = (family_of(Config({**KIMI_K2, **said}, "config.json")) for said in ({}, {"q_lora_rank": None}))
    assert silent.tensors["layers.{i}.q"] == ("model.layers.{i}.self_attn.q_b_proj.weight",)
    assert null.tensors["layers.{i}.q"] == ("model.layers.{i}.self_attn.q_proj.weight",)
    latent = spec_of({**KIMI_K2, "q_lora_rank": None}).attention.latent
    assert latent is not None and latent.query_rank == 0


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob other than False is not supported"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method must be greedy or group_limited_greedy"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func other than sigmoid is not supported"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq other than 1 is not supported"),
        ("axk1", {"mlp_layer_types": ["dense"]}, "mlp_layer_types must name dense or sparse for each of 3 layers"),
        ("youtu", {"qk_rope_head_dim": 7}, "latent rope_dim 7 must be even to rotate"),
    ],
)
def test_what_is_not_computed_is_refused_by_key(name: str, changed: dict[str, Any], words: str) -> None:
    with pytest.raises((CheckpointError, ValueError), match=words):
        spec_of({**ZOO[name], **changed})
