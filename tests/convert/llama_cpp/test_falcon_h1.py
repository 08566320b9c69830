"""A GGUF of Falcon-H1, whose multipliers llama.cpp's converter puts into the weights, gives the original's logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.compose import compose
from convert.config.config import Config
from convert.formats.gguf import GgufFile
from convert.formats.shards import open_tensors
from convert.llama_cpp.model import open_gguf
from convert.source import open_model
from jaxengine.architecture.parameters import ParameterSource
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.forward import Forward
from tests.families.zoo import ZOO
from tests.tiny import BOS, VOCAB, write_model

IDS = [BOS, *np.random.default_rng(1).integers(4, VOCAB, 19).tolist()]
NORMED = {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_ssm": 96}  # behind it, as llama.cpp has it


@pytest.mark.parametrize("changes", [{}, NORMED, {"attention_bias": False, "mamba_conv_bias": False}])
def test_logits_are_the_original_s(changes: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = write_model(tmp_path / "model", ZOO["falcon_h1"] | changes)
    original = compose(Config.load(checkpoint / "config.json"), open_tensors(checkpoint))
    converted = open_gguf(GgufFile(write_tiny_gguf(checkpoint, tmp_path / "x.gguf")))
    expected = logits(original)
    assert np.ptp(expected, axis=1).min() > 0.5  # the checkpoint says something
    np.testing.assert_allclose(logits(converted), expected, atol=1e-4)


def test_adapters_of_the_checkpoint_do_not_fit_the_multiplied_weights(tmp_path: Path) -> None:
    path = write_tiny_gguf(write_model(tmp_path / "model", ZOO["falcon_h1"]), tmp_path / "x.gguf")
    assert open_model(str(path), cache_dir=tmp_path).adapters is None


def logits(source: ParameterSource) -> np.ndarray:
    """[tokens, vocabulary]."""
    rows: np.ndarray = Forward(source).prefill(0, IDS, 0, len(IDS))
    return rows
