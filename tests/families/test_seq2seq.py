"""Models with an encoder compute what their reference computes, in f32 within 1e-3, alone and among others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert.config import Config
from convert.families import compose
from convert.formats.shards import open_tensors
from tests.families.forward import Forward
from tests.families.seq2seq import SEQ2SEQ, seq2seq_logits, start_of
from tests.jaxengine.engines import prompt
from tests.tiny import EOS

Zoo = Callable[[str], Path]
SOURCE = [*prompt(38), EOS]


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_logits_are_the_reference_s(name: str, seq2seq: Zoo) -> None:
    """In one shot, in chunks, and step by step; the other room's source must not be seen."""
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
def test_a_head_is_tied_where_nothing_is_said_of_it(name: str, seq2seq: Zoo) -> None:
    """As transformers 4 wrote it: its default is left out."""
    directory = seq2seq(name)
    said, tensors = Config.load(directory / "config.json"), open_tensors(directory)
    assert said.values["tie_word_embeddings"] is True
    unsaid = {key: value for key, value in said.values.items() if key != "tie_word_embeddings"}
    assert compose(Config(unsaid, said.where), tensors).spec == compose(said, tensors).spec
