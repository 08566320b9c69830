"""Gemma 4's configurations as they are published: whole models, whose text part is served alone."""

from dataclasses import replace
from typing import Any

import pytest

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import family_of
from convert.families.multimodal import text_config
from jaxengine.architecture.model import ModelSpec
from tests.convert.families.test_silent_configurations import spec_of
from tests.families.zoo import FULL, SLIDING, ZOO
from tests.gemma4_shapes import GEMMA4_26B_A4B, GEMMA4_31B, GEMMA4_E2B, GEMMA4_E4B


def types(layers: int, period: int) -> list[str]:
    return [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]


SMALL: dict[str, Any] = {
    "attention_k_eq_v": False,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144,
    "layer_types": types(35, 5),
    "max_position_embeddings": 131072,
    "model_type": "gemma4_text",
    "moe_intermediate_size": None,
    "num_attention_heads": 8,
    "num_experts": None,
    "num_global_key_value_heads": None,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "rope_parameters": {
        FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 512,
    "top_k_experts": None,
    "use_bidirectional_attention": None,
    "use_double_wide_mlp": True,
    "vocab_size": 262144,
}
LARGE = {**SMALL, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
LARGE |= {"sliding_window": 1024, "max_position_embeddings": 262144, "use_double_wide_mlp": False}
LARGE |= {"use_bidirectional_attention": "vision"}
PUBLISHED: dict[str, tuple[dict[str, Any], ModelSpec]] = {
    "E2B": (SMALL, GEMMA4_E2B),
    "E4B": (
        {**SMALL, "hidden_size": 2560, "num_hidden_layers": 42, "num_key_value_heads": 2, "intermediate_size": 10240}
        | {"num_kv_shared_layers": 18, "layer_types": types(42, 6), "use_double_wide_mlp": False},
        GEMMA4_E4B,
    ),
    "31B": (
        {**LARGE, "hidden_size": 5376, "num_hidden_layers": 60, "num_key_value_heads": 16, "intermediate_size": 21504}
        | {"num_global_key_value_heads": 4, "num_attention_heads": 32, "layer_types": types(60, 6)},
        GEMMA4_31B,
    ),
    "26B-A4B": (
        {**LARGE, "hidden_size": 2816, "num_hidden_layers": 30, "num_key_value_heads": 8, "intermediate_size": 2112}
        | {"num_global_key_value_heads": 2, "num_attention_heads": 16, "layer_types": types(30, 6)}
        | {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
        GEMMA4_26B_A4B,
    ),
}


def by_layer(spec: ModelSpec) -> ModelSpec:
    return replace(spec, kinds=tuple(map(spec.kind, range(spec.num_layers))))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_read_with_their_sizes(name: str) -> None:
    """transformers, which finds the text part, names layers with as many digits as the last has."""
    text, expected = PUBLISHED[name]
    config = Config({"model_type": "gemma4", "text_config": text}, "config.json", text_alone=True)
    found = text_config(config)
    assert max(map(len, found.get("per_layer_config"))) == 2
    assert by_layer(family_of(found).spec(found)) == by_layer(expected)


def test_what_single_layers_have_is_named_by_their_numbers() -> None:
    wide = {"num_hidden_layers": 3, "layer_types": [SLIDING, SLIDING, FULL], "global_head_dim": None}
    for key in ("2", "02"):
        values = {**ZOO["gemma4_text"], **wide, "per_layer_config": {key: {"head_dim": 32}}}
        assert spec_of(values).kinds[2].head_dim == 32
    with pytest.raises(CheckpointError, match="last must be an object of a layer, by its number"):
        spec_of({**ZOO["gemma4_text"], **wide, "per_layer_config": {"last": {"head_dim": 32}}})
