"""Experts widened by zeros, so that devices can share them: the same model, as its kernels can read it."""

from pathlib import Path

import numpy as np
import pytest

from convert.source import open_model
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from jaxengine.device import CPU
from jaxengine.weights.quantization import weight_formats
from jaxengine.weights.wider_experts import WidenedSource, widen_experts
from tests.families.forward import Forward
from tests.families.references import zoo_logits
from tests.families.zoo import ZOO
from tests.interpreted import interpreted_kernels
from tests.jaxengine.engines import prompt
from tests.shapes import H200
from tests.tiny import write_model
from tests.tiny_quantized import write_gpt_oss

WIDTH, IDS = 96, prompt(24, seed=1)  # not in planes of 64, but in groups of 32


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpt-oss with its experts in MXFP4, and in floats."""
    directory = tmp_path_factory.mktemp("wide")
    original = write_model(directory / "gpt_oss", {**ZOO["gpt_oss"], "intermediate_size": WIDTH})
    return write_gpt_oss(original, directory / "x")


@pytest.fixture(scope="module")
def source(checkpoints: Path) -> ParameterSource:
    return open_model(str(checkpoints / "mxfp4")).source


@pytest.mark.parametrize(("devices", "width"), [(1, 128), (2, 128), (4, 256)])
def test_a_device_s_share_is_what_the_kernels_read(source: ParameterSource, devices: int, width: int) -> None:
    wide = widen_experts(source, devices, H200)
    assert wide.spec.experts is not None and wide.spec.experts.ffn_size == width
    stored = source.stored("layers.0.experts_down")
    assert stored is not None
    held = weight_formats(wide, None, H200, devices)
    assert len(held) == 2 * source.spec.num_layers and set(held.values()) == {stored.format}


def test_what_divides_stays_as_it_is(source: ParameterSource, checkpoints: Path) -> None:
    floats = open_model(str(checkpoints / "dense")).source
    assert widen_experts(floats, 2, H200) is floats  # 48 each
    assert widen_experts(source, 2, CPU) is source  # no kernels
    wide = widen_experts(floats, 4, H200)  # 24 each
    assert wide.spec.experts is not None and wide.spec.experts.ffn_size == 256


def test_slices_equal_the_whole(source: ParameterSource) -> None:
    wide = WidenedSource(source, 128)
    for name, parameter in parameter_table(wide.spec).items():
        whole = wide.read(name, ())
        assert whole.shape == parameter.shape
        for axis, size in enumerate(parameter.shape):
            for cut in (slice(size // 2, size), slice(size - 1, size)):
                index = (*(slice(None),) * axis, cut)
                np.testing.assert_array_equal(wide.read(name, index), whole[index])


@pytest.mark.slow
def test_the_logits_are_those_of_the_narrow_experts(source: ParameterSource, checkpoints: Path) -> None:
    """Which the kernels, interpreted, read in 4 bits."""
    wide = widen_experts(source, 1, H200)
    assert weight_formats(wide, None, H200)["layers.0.experts_down"].bits == 4
    with interpreted_kernels():
        ours = Forward(wide, slots=1, device=H200).prefill(0, IDS, 0, len(IDS))
    np.testing.assert_allclose(ours, zoo_logits(checkpoints / "dense", IDS), atol=1e-3)
