"""Models with an encoder compute what their reference computes, in f32 within 1e-3, alone and among others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.shards import open_tensors
from tests.families.forward import Forward
from tests.families.seq2seq import SEQ2SEQ, seq2seq_logits, start_of
from tests.jaxengine.engines import prompt
from tests.tiny import EOS

Zoo = Callable[[str], Path]
SOURCE = [*prompt(38), EOS]
QUICK = ("t5", "bart")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SEQ2SEQ]
)
def test_logits_are_the_reference_s(name: str, seq2seq: Zoo) -> None:
    """In one shot, in chunks, and step by step; another slot's encoded prompt must not be seen."""
    directory = seq2seq(name)
    model = Forward(compose(Config.load(directory / "config.json"), open_tensors(directory)))
    ids = [start_of(name), *prompt(44, seed=1)]
    expected = seq2seq_logits(directory, SOURCE, ids)
    assert np.ptp(expected, axis=1).min() > 1 and len(set(expected.argmax(-1))) > 5  # the checkpoint says something
    model.encode(0, SOURCE)
    model.encode(1, SOURCE[::-1])
    rows = [model.prefill(0, ids[:21], 0, 1), model.prefill(0, ids[21:40], 21, 1)]
    rows += [model.decode(0, ids[position], position, 1)[None] for position in range(40, 45)]
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5_tied"])
def test_a_head_is_tied_where_the_configuration_does_not_say(name: str, seq2seq: Zoo) -> None:
    """transformers 4 left its default out of the files it wrote."""
    directory = seq2seq(name)
    said, tensors = Config.load(directory / "config.json"), open_tensors(directory)
    assert said.values["tie_word_embeddings"] is True
    unsaid = {key: value for key, value in said.values.items() if key != "tie_word_embeddings"}
    assert compose(Config(unsaid, said.where), tensors).spec == compose(said, tensors).spec


@pytest.mark.parametrize("name", ["flan_t5", "umt5"])
def test_an_untied_t5_saved_by_transformers_5_is_known_by_its_output_scale(name: str, seq2seq: Zoo) -> None:
    """transformers 5 calls every head tied, and writes in `scale_decoder_outputs` whether hidden states are divided."""
    said, tensors = Config.load(seq2seq(name) / "config.json"), open_tensors(seq2seq(name))
    saved = {**said.values, "tie_word_embeddings": True, "scale_decoder_outputs": False}
    assert compose(Config(saved, said.where), tensors).spec == compose(said, tensors).spec


def test_t5_s_activation_may_have_a_key_of_its_own(seq2seq: Zoo) -> None:
    said, tensors = Config.load(seq2seq("flan_t5") / "config.json"), open_tensors(seq2seq("flan_t5"))
    assert compose(Config({**said.values, "dense_act_fn": "gelu"}, said.where), tensors).spec.activation == "gelu"


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_copy_may_replace_the_embedding_and_all_copies_must_be_equal(name: str, seq2seq: Zoo, tmp_path: Path) -> None:
    config, stored = Config.load(seq2seq(name) / "config.json"), load_file(seq2seq(name) / "model.safetensors")
    prefix = "model." if name == "bart" else ""
    embedding = stored.pop(f"{prefix}shared.weight")
    copies = {f"{prefix}{stack}.embed_tokens.weight": embedding for stack in ("encoder", "decoder")}
    save_file({**stored, **copies}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(compose(config, open_tensors(tmp_path)).read("embedding", ()), embedding)
    copies[f"{prefix}decoder.embed_tokens.weight"] = embedding + 1
    save_file({**stored, **copies}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight' differs from"):
        compose(config, open_tensors(tmp_path))
