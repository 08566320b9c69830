"""Ropes that turn by time, row and column: tables of transformers' own rotary embeddings, of texts and of towers."""

import copy
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from convert.config.config import Config
from convert.config.rope import rope
from convert.errors import CheckpointError
from convert.families.multimodal import text_config
from jaxengine.architecture.model import Rope
from jaxengine.model.rope import make_rope_tables
from jaxengine.ops import RopeTables
from tests.tiny_vision import RECIPES, build

TOKENS = 50
LENGTH = jnp.full(TOKENS, TOKENS, jnp.int32)
HEAD_DIM = 128
SHARED: dict[str, Any] = {"head_dim": HEAD_DIM, "hidden_size": 256, "num_attention_heads": 2}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}


def positions(axes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 400, (axes, TOKENS)).astype(np.int32)


def tables(made: Rope, head_dim: int, position: np.ndarray) -> RopeTables:
    own = jnp.arange(TOKENS, dtype=jnp.int32)
    return make_rope_tables(made, head_dim, own, LENGTH, jnp.asarray(position))


def check(ours: RopeTables, cos: Any, sin: Any) -> None:
    half = ours.cos.shape[1]
    for mine, theirs in ((ours.cos, cos), (ours.sin, sin)):
        np.testing.assert_allclose(mine, theirs.reshape(TOKENS, -1)[:, :half].numpy(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [{}, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("sections", [[16, 24, 24], [24, 20, 20], None], ids=["qwen2", "qwen3", "default"])
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_a_text_part_turns_as_in_transformers(name: str, sections: list[int] | None, scaling: dict[str, Any]) -> None:
    turning = {"rope_type": "default", "rope_theta": 1e6, **scaling} | ({"mrope_section": sections} if sections else {})
    fields = {
        **RECIPES[name],
        "text_config": {
            **RECIPES[name]["text_config"],
            **SHARED,
            "max_position_embeddings": 4096,
            "rope_parameters": turning,
        },
    }
    made = rope(text_config(Config(fields, "config.json")), HEAD_DIM, part=0.25 if name == "qwen3_5" else None)
    config = transformers.AutoConfig.for_model(**copy.deepcopy(fields)).text_config
    theirs, position = type(build(name).model.language_model.rotary_emb)(config), positions(3)
    cos, sin = theirs(torch.zeros(1, TOKENS, 1), torch.from_numpy(position)[:, None])
    check(tables(made, HEAD_DIM, position), cos, sin)


def test_a_text_alone_is_rotated_to_the_same_bits_as_without_axes() -> None:
    own = jnp.arange(TOKENS, dtype=jnp.int32)
    plain = make_rope_tables(Rope(), 16, own, LENGTH)
    for layout in ("runs", "interleaved"):
        made = make_rope_tables(Rope(axes=(2, 3, 3), layout=layout), 16, own, LENGTH)  # type: ignore[arg-type]
        np.testing.assert_array_equal(made.cos, plain.cos)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_a_tower_s_rows_and_columns_have_the_frequencies_of_half_a_head(name: str) -> None:
    visual = build(name).model.visual
    dim, position = 2 * visual.rotary_pos_emb.inv_freq.numel() * 2, positions(2)
    cos, sin = visual.rotary_pos_emb(torch.zeros(TOKENS, 1), torch.from_numpy(position).T)
    made = Rope(axes=(0, dim // 4, dim // 4), layout="own")
    check(tables(made, dim, np.stack([np.zeros(TOKENS, np.int32), *position])), cos, sin)


@pytest.mark.parametrize("sections", [[2, 3], [2, 3, 4], [2, 3, -3], "24"])
def test_sections_that_are_no_shares_of_the_frequencies_are_refused(sections: Any) -> None:
    fields = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}}
    with pytest.raises(CheckpointError, match="mrope_section"):
        rope(Config(fields, "config.json"), 16)
