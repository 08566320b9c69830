"""Models that also take pictures, given text alone: logits are those of transformers' whole model."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from convert.errors import CheckpointError
from convert.source import open_model
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table
from tests.families.forward import Forward
from tests.families.zoo import ZOO
from tests.jaxengine.engines import prompt
from tests.tiny import BASE, redraw, tokenizer
from tests.tiny_vision import REFUSED

TEXT = {**BASE, "num_key_value_heads": 2}
VISION: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
QWEN: dict[str, Any] = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "out_hidden_size": 64, "num_heads": 2}
QWEN |= {"intermediate_size": 48, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
LLAMA, QWEN2 = {**TEXT, "model_type": "llama"}, {**TEXT, "model_type": "qwen2"}
MISTRAL = {**TEXT, "model_type": "mistral", "head_dim": 24}
MINISTRAL = {**MISTRAL, "model_type": "ministral3", "rope_parameters": ZOO["ministral3"]["rope_parameters"]}
WHOLE: dict[str, dict[str, Any]] = {
    "gemma3": {"text_config": {**TEXT, "sliding_window": 7, "num_hidden_layers": 6}, "vision_config": VISION}
    | {"mm_tokens_per_image": 4},
    "idefics3": {"text_config": LLAMA, "vision_config": VISION},
    "llava": {"text_config": LLAMA, "vision_config": {**VISION, "projection_dim": 32}},
    "mistral3": {"text_config": MINISTRAL},
    "qwen2_5_vl": {
        **TEXT,
        "rope_parameters": SECTIONS,
        "vision_config": QWEN,
    },  # one configuration without sections, as on the hub
    "qwen3_vl": {"text_config": {**TEXT, "head_dim": 16, "rope_parameters": SECTIONS}, "vision_config": QWEN}
    | {"tie_word_embeddings": True},
}
ALIKE = {
    "idefics2": {"text_config": MISTRAL, "vision_config": VISION},
    "internvl": {"text_config": QWEN2},
    "llava_next": {"text_config": MISTRAL},
    "qwen2_vl": {"text_config": {**TEXT, "rope_parameters": SECTIONS}, "vision_config": {**QWEN, "hidden_size": 64}},
    "smolvlm": {"text_config": LLAMA, "vision_config": VISION},
}
TEXTS = {"idefics2": "mistral", "internvl": "qwen2", "llava_next": "mistral", "qwen2_vl": "qwen2", "smolvlm": "llama"}


def write(directory: Path, name: str) -> Any:
    """The whole model, saved with only the configuration that is written above."""
    fields = {**(WHOLE | ALIKE)[name], "image_token_id": 7}
    config = transformers.AutoConfig.for_model(name, **copy.deepcopy(fields))
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    redraw(model).save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": name, **fields}))
    tokenizer().save_pretrained(directory)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_text_without_a_picture_is_read_as_by_the_whole_model(name: str, tmp_path: Path) -> None:
    model, ids = write(tmp_path, name), prompt(24)
    rows = Forward(open_model(str(tmp_path)).source).prefill(0, ids, 0, 24)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()
    assert np.ptp(expected, axis=1).min() > 0.5
    np.testing.assert_allclose(rows, expected, atol=1e-3)


def gemma4_text(name: str, *but: str) -> dict[str, Any]:
    return {key: value for key, value in ZOO[name].items() if key not in ("model_type", *but)}


GEMMA4: dict[str, dict[str, Any]] = {
    "gemma4": {
        "text_config": gemma4_text("gemma4_e2b"),
        "vision_config": {**VISION, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64},
        "audio_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 32},
    },
    "gemma4_unified": {
        "text_config": gemma4_text("gemma4_text", "hidden_size_per_layer_input"),
        "vision_config": {"mm_embed_dim": 32, "mm_posemb_size": 8, "output_proj_dims": 32},
        "audio_config": {"audio_embed_dim": 32},
    },
}


@pytest.fixture(scope="module", params=GEMMA4)
def gemma4(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Any]:
    """A whole Gemma 4, whose towers are not built here, and transformers' model of it."""
    directory = tmp_path_factory.mktemp("gemma4")
    config = transformers.AutoConfig.for_model(request.param, **copy.deepcopy(GEMMA4[request.param]))
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    redraw(model).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory, model


def test_a_model_whose_towers_are_not_built_is_served_for_text_alone_if_that_is_asked_for(
    gemma4: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, model = gemma4
    ids = prompt(24)
    source = open_model(str(directory), language_model_only=True).source
    assert source.spec.vision is None
    assert "served alone, as --language-model-only says; pictures and sound are refused" in capsys.readouterr().err
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()
    assert np.ptp(expected, axis=1).min() > 0.5
    np.testing.assert_allclose(Forward(source).prefill(0, ids, 0, 24), expected, atol=1e-3)


def test_without_the_option_it_is_refused_with_the_option_s_name(gemma4: tuple[Path, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"not supported whole: .*; --language-model-only serves its text part"):
        open_model(str(gemma4[0]))


def test_a_model_that_sees_is_its_text_part_if_that_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "llava")
    assert open_model(str(tmp_path)).source.spec.vision is not None
    assert open_model(str(tmp_path), language_model_only=True).source.spec.vision is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_the_text_part_is_the_model_of_its_family(name: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", name)
    kept = {key: value for key, value in ALIKE[name]["text_config"].items() if key != "rope_parameters"}
    kept |= {"model_type": TEXTS[name], "tie_word_embeddings": whole.config.tie_word_embeddings}
    config = transformers.AutoConfig.for_model(**kept)
    alone = transformers.AutoModelForCausalLM.from_config(config)
    text = whole.model.text_model if hasattr(whole.model, "text_model") else whole.model.language_model
    alone.model.load_state_dict(text.state_dict())
    alone.lm_head.load_state_dict(whole.lm_head.state_dict())
    alone.save_pretrained(tmp_path / "alone")
    tokenizer().save_pretrained(tmp_path / "alone")
    ours, theirs = (open_model(str(tmp_path / each)).source for each in ("whole", "alone"))
    assert _of_one_axis(replace(ours.spec, vision=None)) == theirs.spec
    for parameter in parameter_table(theirs.spec):
        np.testing.assert_array_equal(ours.read(parameter, ()), theirs.read(parameter, ()))


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_a_text_part_that_transformers_read_and_saved_has_the_whole_s_names(kind: str, tmp_path: Path) -> None:
    """As models do that were trained further without their towers."""
    fields = {"text_config": copy.deepcopy(ZOO[kind]), "vision_config": {**QWEN, "num_position_embeddings": 16}}
    whole = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(kind, **fields))
    whole.save_pretrained(tmp_path / "whole")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "text")
    for each in ("whole", "text"):
        tokenizer().save_pretrained(tmp_path / each)
    assert any(name.startswith("model.language_model.") for name in load_file(tmp_path / "text" / "model.safetensors"))
    ours = open_model(str(tmp_path / "text")).source
    theirs = open_model(str(tmp_path / "whole"), language_model_only=True).source
    for parameter in parameter_table(theirs.spec):
        np.testing.assert_array_equal(ours.read(parameter, ()), theirs.read(parameter, ()))


def test_a_checkpoint_without_its_tower_is_the_text_part_alone(tmp_path: Path) -> None:
    write(tmp_path, "llava")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({name: values for name, values in tensors.items() if "language_model" in name}, file, {"format": "pt"})
    assert open_model(str(tmp_path)).source.spec.vision is None


def test_a_checkpoint_with_a_part_of_its_tower_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "llava")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({name: values for name, values in tensors.items() if "linear_2.bias" not in name}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks tensor 'multi_modal_projector.linear_2.bias'"):
        open_model(str(tmp_path))


def _of_one_axis(spec: ModelSpec) -> ModelSpec:
    """`spec`, whose tokens have one position each, as those of a text do."""
    kinds = (replace(kind, rope=kind.rope and replace(kind.rope, axes=None)) for kind in spec.kinds)
    return replace(spec, kinds=tuple(kinds))


def test_a_model_whose_prompt_attends_both_ways_is_not_served_as_text_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "paligemma"}')
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match=r"model_type is not supported without .*, got 'paligemma'"):
        open_model(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"model_type is not supported as a text part alone: .*'paligemma'"):
        open_model(str(tmp_path), language_model_only=True)


@pytest.mark.parametrize("name", [*REFUSED, "llava_onevision"])
def test_a_model_that_sees_in_a_way_that_is_not_built_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match=rf"model_type is not supported: its .* see are gemma3, .*, got '{name}'"):
        open_model(str(tmp_path))
