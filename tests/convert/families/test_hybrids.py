"""Configurations of models with layers that keep states: what they leave out, spell otherwise, or ask for in vain."""

import math
from typing import Any

import pytest

from convert.errors import CheckpointError
from tests.convert.families.test_silent_configurations import SHAPES, filled, spec_of
from tests.families.zoo import ATTENTION, FULL, LINEAR_ATTENTION, MAMBA, ZOO

NAMES = ("bamba", "falcon_h1", "falcon_h1_normed", "granite_hybrid", "granite_hybrid_moe", "lfm2", "lfm2_moe")
NAMES += ("nemotron_h", "nemotron_h_dense", "olmo_hybrid", "olmo_hybrid_nope")
# What the shapes of tensors tell anyway, which layers are of what kind, and what contradicts the others by default.
TOLD = SHAPES | {"mamba_n_heads", "mamba_d_ssm", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "num_experts"}
TOLD |= {"head_dim", "n_groups", "num_local_experts", "layer_types", "layers_block_type", "attn_layer_indices"}
TOLD |= {"n_group", "topk_group"}


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_missing_has_transformers_value(name: str) -> None:
    for key in ZOO[name].keys() - TOLD:
        silent = {own: value for own, value in ZOO[name].items() if own != key}
        assert spec_of(silent) == spec_of(filled(silent)), key


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("granite_hybrid", {"layer_types": [LINEAR_ATTENTION, FULL, LINEAR_ATTENTION]}),
        ("granite_hybrid", {"layer_types": None, "layers_block_type": [MAMBA, ATTENTION, MAMBA]}),
        ("granite_hybrid", {"mamba_d_head": 16, "position_embedding_type": "nope"}),
        ("granite_hybrid", {"mamba_d_head": "auto"}),
        ("bamba", {"time_step_limit": [0.0, 1.0], "mamba_d_head": 16, "partial_rotary_factor": 0.5}),
        ("lfm2", {"layer_types": None, "full_attn_idxs": [1]}),
        ("lfm2", {"intermediate_size": 1, "block_ff_dim": 96, "tie_word_embeddings": True, "tie_embedding": False}),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "ME*-", "num_hidden_layers": 7}),
        ("nemotron_h", {"layers_block_type": [LINEAR_ATTENTION, "moe", FULL, "mlp"]}),
        ("nemotron_h", {"n_groups": None, "mamba_n_groups": 2, "time_step_min": 0.3}),
        ("nemotron_h", {"mamba_dt_limit": [0.0, math.inf]}),
        ("olmo_hybrid", {"rope_parameters": {"rope_type": "default"}}),
        ("olmo_hybrid", {"rope_theta": 10000.0}),
        ("olmo_hybrid", {"layer_types": None, "full_attention_interval": 2}),
    ],
)
def test_other_spellings_give_the_same_spec(name: str, old: dict[str, Any]) -> None:
    assert spec_of({**ZOO[name], **old}) == spec_of(ZOO[name])


def test_a_granite_without_mamba_keeps_no_states() -> None:
    spec = spec_of({**ZOO["granite_hybrid"], "layer_types": [ATTENTION] * 3, "position_embedding_type": "rope"})
    assert spec.mamba2 is None and not spec.keeps_states and spec.kinds[0].rope is not None


def test_time_steps_without_an_upper_limit_have_none() -> None:
    for limit in ([0.1, math.inf], [0.1, {"__float__": "Infinity"}]):
        mamba = spec_of({**ZOO["granite_hybrid"], "time_step_limit": limit}).mamba2
        assert mamba is not None and (mamba.least_step, mamba.most_step) == (0.1, None)


def test_time_steps_of_nemotron_are_those_of_its_limit_whatever_training_began_with() -> None:
    mamba = spec_of({**ZOO["nemotron_h"], "time_step_min": 0.001, "time_step_limit": [0.0, math.inf]}).mamba2
    assert mamba is not None and (mamba.least_step, mamba.most_step) == (0.0, None)
    mamba = spec_of({**ZOO["nemotron_h"], "mamba_dt_limit": [0.25, 2]}).mamba2
    assert mamba is not None and (mamba.least_step, mamba.most_step) == (0.25, 2.0)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("granite_hybrid", {"layer_types": None}, "layer_types must name full_attention, attention"),
        ("granite_hybrid", {"layer_types": [MAMBA, "conv", MAMBA]}, "layer_types must name full_attention, attention"),
        ("granite_hybrid", {"layer_types": [MAMBA] * 3}, "layers with attention among those without"),
        ("granite_hybrid", {"position_embedding_type": "alibi"}, "position_embedding_type must be rope or nope"),
        ("granite_hybrid", {"hidden_act": "relu"}, "hidden_act other than silu is not supported"),
        ("granite_hybrid", {"normalization_function": "layernorm"}, "normalization_function other than rmsnorm"),
        ("granite_hybrid", {"mamba_d_head": 15}, "mamba_d_head must be 16"),
        ("granite_hybrid", {"mamba_n_heads": 7}, "mamba_n_heads must divide the width of all heads, 128"),
        ("granite_hybrid", {"mamba_n_groups": 3}, "heads 8 are no multiple of its groups 3"),
        ("granite_hybrid", {"mamba_expand": 2**20}, "mamba_expand times hidden_size 64 must be at most"),
        ("granite_hybrid", {"mamba_d_state": 2**30}, "makes of a token must be at most"),
        ("granite_hybrid", {"time_step_limit": [1, -1]}, "time_step_limit must be two numbers, not negative"),
        ("granite_hybrid", {"time_step_limit": [1, 0.5]}, "time steps of 1.0 to 0.5 are none"),
        ("bamba", {"attn_layer_indices": 1}, "attn_layer_indices must be a list of layer numbers"),
        ("bamba", {"partial_rotary_factor": 0.25}, "partial_rotary_factor other than 0.5 is not supported"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers must be 5 numbers"),
        ("falcon_h1", {"mlp_multipliers": [1.0, "a"]}, "mlp_multipliers must be 2 numbers"),
        ("lfm2", {"layer_types": ["conv"]}, "layer_types must name full_attention or conv for each of 3 layers"),
        ("lfm2", {"layer_types": None, "full_attn_idxs": 1}, "full_attn_idxs must be a list"),
        ("lfm2", {"conv_L_cache": 1}, "kernel must be at least 2"),
        ("lfm2", {"block_ffn_dim_multiplier": 1e9}, "block_ffn_dim_multiplier makes an MLP of no width from 1 to"),
        ("nemotron_h", {"moe_latent_size": 32}, "moe_latent_size other than None is not supported"),
        ("nemotron_h", {"residual_in_fp32": True}, "residual_in_fp32 other than False is not supported"),
        ("nemotron_h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act other than silu is not supported"),
        ("nemotron_h", {"layers_block_type": ["conv"]}, "layers_block_type must consist of linear_attention, mamba"),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "MX"}, "hybrid_override_pattern must"),
        ("olmo_hybrid", {"hidden_act": "relu"}, "hidden_act other than silu is not supported"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, ValueError), match=message):
        spec_of({**ZOO[name], **changes})
