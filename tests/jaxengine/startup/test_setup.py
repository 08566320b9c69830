"""What is decided before the first weight is read."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from convert.source import open_model
from jaxengine.device import DeviceTraits
from jaxengine.options.table import EngineOptions
from jaxengine.startup.setup import Setup
from tests.shapes import H200
from tests.tiny_quantized import write_gpt_oss


def test_no_number_of_devices_means_all_in_any_process(tiny: Callable[[str], Path]) -> None:
    setup = Setup.decide(open_model(str(tiny("llama2_gqa"))), EngineOptions(tensor_parallel=0))
    assert setup.mesh.size == jax.local_device_count()


def test_a_gpu_s_engine_widens_experts_that_its_kernels_cannot_read(
    zoo: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_gpt_oss(zoo("gpt_oss"), tmp_path) / "mxfp4"
    monkeypatch.setattr(DeviceTraits, "of", lambda _: H200)
    setup = Setup.decide(open_model(str(directory)), EngineOptions(tensor_parallel=1))
    assert setup.spec.experts is not None and setup.spec.experts.ffn_size == 64
    assert {format.name for format in setup.formats.values()} == {"mxfp4"}
