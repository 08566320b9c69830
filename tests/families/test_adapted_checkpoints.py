"""Adapters beside quantised weights: logits are PEFT's, of the floats that the numbers stand for with that adapter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest

from convert.source import OpenModel, open_model
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.device import CPU, DeviceTraits
from jaxengine.ops.weight import Weight
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.forward import Forward
from tests.in_floats import InFloats
from tests.interpreted import interpreted_kernels
from tests.jaxengine.engines import prompt
from tests.shapes import H200
from tests.tiny import write_tiny
from tests.tiny_adapter import adapted, logits
from tests.tiny_quantized import write_quantized

pytestmark = pytest.mark.slow

IDS = prompt(24, seed=1)
LOUD = 0.1  # of the largest logit: less than what any adapter of these changes


@dataclass(frozen=True)
class AsHeld(InFloats):
    """`source` in floats, as a device holds them: matrices that it holds rounded are those."""

    held: dict[str, Any]

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        weight = self.held[name]
        if not isinstance(weight, Weight):
            return self.source.read(name, index)
        return np.asarray(weight.dense("float32"))[index]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose matrices are wide enough for the kernels of GPUs, whatever the format."""
    return write_tiny(tmp_path_factory.mktemp("llama"), "llama2_gqa", intermediate_size=128, num_hidden_layers=1)


def opened(directory: Path, tmp_path: Path) -> OpenModel:
    return open_model(str(directory), cache_dir=tmp_path / "cache")


def computed(
    model: OpenModel, source: ParameterSource, adapter: Path, device: DeviceTraits = CPU, quantize: str | None = None
) -> np.ndarray:
    assert model.adapters is not None
    made = Forward(source, slots=1, device=device, quantize=quantize, adapter=(model.adapters, str(adapter)))
    return np.concatenate(
        [made.prefill(0, IDS[:-1], 0, len(IDS)), made.decode(0, IDS[-1], len(IDS) - 1, len(IDS))[None]]
    )


def assert_adapted(ours: np.ndarray, expected: np.ndarray, without: np.ndarray) -> None:
    np.testing.assert_allclose(ours, expected, atol=1e-3)
    assert np.abs(expected - without).max() > LOUD * np.abs(without).max()


@pytest.mark.parametrize("format", ["gptq_act", "nf4", "int8"])
def test_a_gpu_adds_adapters_to_what_is_stored(format: str, llama: Path, tmp_path: Path) -> None:
    """By its kernels, which are interpreted. With sorted inputs x must stay as the adapter has it."""
    directory = write_quantized(llama, tmp_path, format)
    peft = adapted(directory / "dense")
    peft.save_pretrained(tmp_path / "adapter")
    model = opened(directory / format, tmp_path)
    with interpreted_kernels():
        ours = computed(model, model.source, tmp_path / "adapter", H200)
    with peft.disable_adapter():
        without = logits(peft, IDS)
    assert_adapted(ours, logits(peft, IDS), without)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_file_takes_adapters_of_the_checkpoint_that_it_was_made_of(
    kind: str, llama: Path, tmp_path: Path
) -> None:
    """Whose rows lie in another order there."""
    file = tmp_path / f"{kind}.gguf"
    write_tiny_gguf(llama, file, kind=gguf.GGMLQuantizationType[kind])
    peft = adapted(llama)
    peft.save_pretrained(tmp_path / "adapter")
    model = opened(file, tmp_path)
    with interpreted_kernels():
        ours = computed(model, model.source, tmp_path / "adapter", H200)
    with peft.disable_adapter():
        without = logits(peft, IDS)
    floats = computed(model, InFloats(model.source), tmp_path / "adapter")
    assert_adapted(ours, logits(peft, IDS) if kind == "F32" else floats, without)
    np.testing.assert_allclose(floats, logits(peft, IDS), atol=1e-3 if kind == "F32" else 1.0)


@pytest.mark.parametrize(("format", "quantize"), [(None, "int8"), ("gptq_act", None), ("int8", None)])
def test_a_cpu_adds_adapters_to_what_it_rounds(
    format: str | None, quantize: str | None, llama: Path, tmp_path: Path
) -> None:
    directory = write_quantized(llama, tmp_path, format) / format if format else llama
    adapted(llama).save_pretrained(tmp_path / "adapter")
    model = opened(directory, tmp_path)
    held = load_parameters(model.source, make_mesh(), "float32", CPU, lambda *_: None, quantize)
    assert any(each.dtype == "int8" for each in jax.tree.leaves(held))
    floats = AsHeld(model.source, held)
    without = Forward(floats, slots=1).prefill(0, IDS, 0, len(IDS))
    ours = computed(model, model.source, tmp_path / "adapter", quantize=quantize)
    assert_adapted(ours, computed(model, floats, tmp_path / "adapter"), without)
