"""Weights in 8 bits, in layers of every kind: a model computes with exactly what is stored, near the original.

`tests/jaxengine/weights/test_quantization.py` shows that what is stored is the nearest value, and what it costs a
trained model. In tiny random models a small change may make a router choose another expert, whose logits differ much.
So the median token is compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from convert.compose import compose
from convert.config.config import Config
from convert.formats.shards import open_tensors
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from jaxengine.ops.weight import Weight
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from tests.families.forward import Forward
from tests.families.references import zoo_logits
from tests.families.seq2seq import SEQ2SEQ, seq2seq_logits, start_of
from tests.in_floats import InFloats
from tests.jaxengine.engines import prompt
from tests.shapes import H200
from tests.tiny import EOS

pytestmark = pytest.mark.slow

Zoo = Callable[[str], Path]
SOURCE, IDS = [*prompt(38), EOS], prompt(24, seed=1)
APART = 1e-3
KL = {"int8": 0.005, "fp8": 0.035}  # nats, of the median token


@dataclass(frozen=True)
class Restored(InFloats):
    """`source` with its quantised weights multiplied out, in full precision."""

    quantize: str

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Loaded as for a GPU, whose layout is that of `parameter_table`, except that a kernel's input axes are one."""
        return load_parameters(self.source, make_mesh(), "float32", H200, lambda *_: None, self.quantize)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        parameter = self.parameters[name]
        whole = parameter.dense("float32") if isinstance(parameter, Weight) else parameter
        return np.asarray(whole).reshape(parameter_table(self.spec)[name].shape)[index]


def logits(source: ParameterSource, name: str, quantize: str | None = None) -> np.ndarray:
    model = Forward(source, slots=1, quantize=quantize)
    if name in SEQ2SEQ:
        model.encode(0, SOURCE)
        return model.prefill(0, [start_of(name), *IDS], 0, 1)
    return model.prefill(0, IDS, 0, len(IDS))


@pytest.mark.parametrize(
    ("name", "quantize"),
    [
        ("mixtral", "int8"),
        ("mixtral", "fp8"),
        ("qwen3_moe", "int8"),
        ("qwen3_moe", "fp8"),
        pytest.param("qwen2_moe", "int8", id="shared expert"),
        ("dbrx", "fp8"),
        ("phimoe", "int8"),
        pytest.param("gpt_oss", "int8", id="experts with biases"),
        ("falcon_mamba", "fp8"),
        pytest.param("qwen3_5", "int8", id="linear attention"),
        pytest.param("granite_hybrid", "int8", id="mamba 2"),
        pytest.param("lfm2", "fp8", id="short convolutions"),
        pytest.param("t5_deep_encoder", "int8", id="encoder and decoder"),
    ],
)
def test_logits_are_those_of_the_stored_weights_and_near_the_model_s(
    name: str, quantize: str, zoo: Zoo, seq2seq: Zoo
) -> None:
    directory = (seq2seq if name in SEQ2SEQ else zoo)(name)
    source = compose(Config.load(directory / "config.json"), open_tensors(directory))
    ours = logits(source, name, quantize)
    np.testing.assert_allclose(ours, logits(Restored(source, quantize), name), atol=APART)
    plain = seq2seq_logits(directory, SOURCE, [start_of(name), *IDS]) if name in SEQ2SEQ else zoo_logits(directory, IDS)
    exact, got = (torch.from_numpy(np.array(each)).log_softmax(-1) for each in (plain, ours))
    off = (exact.exp() * (exact - got)).sum(-1)
    assert 0 < float(off.median()) < KL[quantize]
