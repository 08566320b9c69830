"""What a configuration leaves out is what transformers fills in, so that a silent one computes the same."""

from typing import Any

import pytest
from transformers import AutoConfig

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import family_of
from jaxengine.architecture.model import ModelSpec
from tests.families.zoo import FULL, SLIDING, ZOO

KIN = {"arcee", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "glm", "glm4", "glm4_moe", "granite", "granitemoe"}
KIN |= {"granitemoeshared", "helium", "minimax_m2", "ministral", "ministral3", "olmo", "olmo2", "olmo3", "olmoe"}
KIN |= {"seed_oss", "smollm3", "axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"}
NO_DEFAULTS = ("exaone4_whole", "glm4_moe_groups")  # each key alone contradicts what the others are by default
NAMES = [name for name, fields in ZOO.items() if fields["model_type"] in KIN and name not in NO_DEFAULTS]
# What the shapes of tensors tell anyway, so that a wrong default is refused.
SHAPES = {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
SHAPES |= {"intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"}
SHAPES |= {"max_position_embeddings", "qk_rope_head_dim"}
GROUPS = {"n_group", "topk_group"}  # each of which alone contradicts the other, or what there is of experts


def spec_of(values: dict[str, Any]) -> ModelSpec:
    config = Config(values, "config.json")
    return family_of(config).spec(config)


def filled(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = AutoConfig.for_model(**values).to_dict()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_missing_has_transformers_value(name: str) -> None:
    for key in ZOO[name].keys() - SHAPES - GROUPS:
        silent = {own: value for own, value in ZOO[name].items() if own != key}
        assert spec_of(silent) == spec_of(filled(silent)), key


def test_layers_of_smollm3_that_are_said_to_slide_do() -> None:
    """Whatever the switch says that only decides where nothing is said of layers."""
    types = [SLIDING, FULL, FULL, SLIDING]
    kinds = spec_of({**ZOO["smollm3"], "layer_types": types, "sliding_window": 5}).kinds
    assert [kind.window for kind in kinds] == [5, 0, 0, 5]


def test_a_floor_of_ernie_s_weights_that_could_matter_is_refused() -> None:
    with pytest.raises(CheckpointError, match="moe_norm_min other than 1e-12 is not supported"):
        spec_of({**ZOO["ernie4_5_moe"], "moe_norm_min": 0.5})
