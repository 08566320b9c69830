"""Idefics 1 beside transformers: where a text's end hides pictures, which configurations are refused, what is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import family_of
from convert.families.multimodal import eyes_of, text_config
from convert.source import open_model
from jaxengine.engine.engine import Engine
from tests.jaxengine.engines import serve
from tests.jaxengine.seeing import TOLERANCE, SeenPrompt, load_seeing, logprob_rows
from tests.tiny_vision import SEEN, write_vision
from tests.vision_references import Reference, noise

# A text that ends and goes on, with another picture or without; one whose end is the prompt's, as if it went on.
ENDS = ("What {} is</s> there? A dog {} or a cat", "What {} is there</s>?", "What {} is there?</s>", "</s>What {}?")


@pytest.mark.slow
def test_behind_the_end_of_a_text_no_picture_is_seen_until_the_next(tmp_path: Path) -> None:
    engine = load_seeing(write_vision(tmp_path, "idefics"))
    reference, vision = Reference(tmp_path / "idefics", "idefics"), engine.runner.shapes.spec.vision
    assert vision is not None
    for text in ENDS:
        pictures = [noise(64, 40), noise(40, 64, 1)][: text.count("{}")]
        assert_answered(engine, SeenPrompt.of(reference, vision, text, pictures))
    assert engine.stats().compiles_after_warmup == 0


@pytest.mark.slow
def test_an_answer_behind_the_end_of_a_text_is_read_anew_as_a_prompt(tmp_path: Path) -> None:
    """It has seen the picture, which a prompt with the same ids does not there."""
    engine = load_seeing(write_vision(tmp_path, "idefics"))
    reference, vision = Reference(tmp_path / "idefics", "idefics"), engine.runner.shapes.spec.vision
    assert vision is not None
    prompt, page = SeenPrompt.of(reference, vision, "What {} is there?</s>", [noise(64, 40)]), 16
    answer = serve(engine, [replace(prompt.ask(1, max_tokens=2 * page), salt=b"shared")])[1]
    whole = replace(prompt, ids=[*prompt.ids, *answer.ids])
    assert_answered(engine, whole, prompt_logprobs=False, salt=b"shared")


def assert_answered(engine: Engine, prompt: SeenPrompt, prompt_logprobs: bool = True, salt: bytes = b"") -> None:
    """With transformers' logprobs and greedy ids."""
    tokens = engine.description.vocab_size
    asked = prompt.ask(1, max_tokens=6, logprobs=tokens, prompt_logprobs=prompt_logprobs)
    answer = serve(engine, [replace(asked, salt=salt)])[1]
    expected = prompt.logprobs(tokens, answer.ids)
    found = logprob_rows([*answer.prompt[1:], *answer.tokens])
    np.testing.assert_allclose(found, expected[-1 - len(found) : -1], atol=TOLERANCE)
    assert answer.ids == expected[len(prompt.ids) - 1 : -1].argmax(-1).tolist()


@pytest.mark.slow
def test_a_checkpoint_without_a_tower_is_its_text_part(tmp_path: Path) -> None:
    directory = write_vision(tmp_path, "idefics_plain")
    reference = Reference(directory, "idefics_plain")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    save_file({name: each for name, each in tensors.items() if "vision_model" not in name}, file, {"format": "pt"})
    assert open_model(str(directory)).source.spec.vision is None
    engine = load_seeing(directory, max_image_patches=None)
    assert_answered(engine, SeenPrompt(reference, reference.prompt("Two rivers end.", []), [], ()))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"alpha_type": "matrix"}, "alpha_type must be one of float, vector"),
        ({"cross_layer_interval": 3}, "cross_layer_interval must divide the 2 of num_hidden_layers"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings other than False is not supported"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    config = text_config(Config({**SEEN["idefics"], **fields}, "config.json"))
    with pytest.raises(CheckpointError, match=said):
        family_of(config).spec(config)


def test_where_the_configuration_has_no_id_of_pictures_it_is_the_second_that_was_added() -> None:
    fields = {key: value for key, value in SEEN["idefics"].items() if key != "image_token_id"}
    eyes = eyes_of(Config(fields, "config.json"))
    assert eyes is not None and eyes.family.spec(eyes.config, 64).token == fields["vocab_size"] + 1
