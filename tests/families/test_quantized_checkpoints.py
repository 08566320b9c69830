"""Checkpoints that are quantised already: their logits are transformers', of the floats that the numbers stand for.

`tests/convert/quantized` shows that the numbers are read as the libraries that write them mean them.
"""

from pathlib import Path

import numpy as np
import pytest

from convert.source import open_model
from jaxengine.device import CPU
from jaxengine.weights.quantization import weight_formats
from tests.conftest import Checkpoints
from tests.families.forward import Forward
from tests.families.references import zoo_logits
from tests.families.zoo import ZOO
from tests.in_floats import InFloats
from tests.interpreted import interpreted_kernels
from tests.jaxengine.engines import prompt
from tests.shapes import H200
from tests.tiny import BASE, reference_logits, write_model
from tests.tiny_quantized import FORMATS, write_gpt_oss, write_quantized

pytestmark = pytest.mark.slow

# what experts are stored in; sorted inputs are an order for each expert, and read in floats
IN_GROUPS = [
    "gptq",
    "gptq_3bit",
    "awq",
    "nf4",
    "fp8_blocks",
    "modelopt_mxfp8",
    "modelopt_nvfp4",
    "ct_w4_asym",
    "ct_mxfp4",
]
IN_GROUPS += ["torchao_int4", "modelopt_mxfp8"]
IDS = prompt(24, seed=1)


def logits(directory: Path, tmp_path: Path) -> np.ndarray:
    source = open_model(str(directory), cache_dir=tmp_path / "cache").source
    return Forward(InFloats(source), slots=1).prefill(0, IDS, 0, len(IDS))


@pytest.mark.parametrize("format", FORMATS)
def test_a_llama_in_every_format_has_the_logits_of_its_floats(format: str, tiny: Checkpoints, tmp_path: Path) -> None:
    directory = write_quantized(tiny("llama2_gqa"), tmp_path, format)
    ours, reference = logits(directory / format, tmp_path), reference_logits(directory / "dense", IDS)
    np.testing.assert_allclose(ours, reference, atol=1e-3)
    assert (ours.argmax(-1) == reference.argmax(-1)).all()
    assert np.abs(reference - reference_logits(tiny("llama2_gqa"), IDS)).max() > 1e-3  # the rounding is seen


@pytest.mark.parametrize(("family", "format"), [("gpt2", "gptq"), ("mixtral", "awq"), ("codegen", "nf4")])
def test_other_families_have_the_logits_of_their_floats(
    family: str, format: str, zoo: Checkpoints, tmp_path: Path
) -> None:
    directory = write_quantized(zoo(family), tmp_path, format)
    ours, reference = logits(directory / format, tmp_path), zoo_logits(directory / "dense", IDS)
    np.testing.assert_allclose(ours, reference, atol=1e-3)


@pytest.mark.parametrize("format", ["fp8_blocks", "awq"])
def test_what_makes_keys_and_values_of_latents_is_read_in_floats_head_by_head(format: str, tmp_path: Path) -> None:
    """As DeepSeek publishes them, and others do; sizes are whole groups."""
    sizes = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 16, "num_hidden_layers": 2}
    model = {**ZOO["deepseek_v3"], **sizes, "attention_bias": False}
    directory = write_quantized(write_model(tmp_path / "deepseek_v3", model), tmp_path, format)
    source = open_model(str(directory / format), cache_dir=tmp_path / "cache").source
    assert source.stored("layers.1.kv_a") and source.stored("layers.1.q")
    np.testing.assert_allclose(logits(directory / format, tmp_path), zoo_logits(directory / "dense", IDS), atol=1e-3)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts wide enough for four planes of 16."""
    return write_model(tmp_path_factory.mktemp("mixture") / "mixtral", {**ZOO["mixtral"], "intermediate_size": 64})


@pytest.mark.parametrize("format", IN_GROUPS)
def test_experts_are_held_and_computed_with_as_stored_on_a_gpu(format: str, mixture: Path, tmp_path: Path) -> None:
    """Whose kernels are interpreted; a CPU holds them in int8."""
    directory = write_quantized(mixture, tmp_path, format)
    check_on_a_gpu(directory / format, zoo_logits(directory / "dense", IDS), tmp_path)


def check_on_a_gpu(directory: Path, expected: np.ndarray, tmp_path: Path) -> None:
    source = open_model(str(directory), cache_dir=tmp_path / "cache").source
    on_gpu, on_cpu = weight_formats(source, None, H200), weight_formats(source, None, CPU)
    for name in ("layers.0.experts_gate_up", "layers.1.experts_down"):
        stored = source.stored(name)
        assert stored is not None
        assert (on_gpu[name], on_cpu[name].name) == (stored.format, "int8")
    with interpreted_kernels():
        ours = Forward(source, slots=1, device=H200).prefill(0, IDS, 0, len(IDS))
    np.testing.assert_allclose(ours, expected, atol=1e-3)


def test_a_module_of_transformers_has_the_logits_of_its_floats(tmp_path: Path) -> None:
    directory = write_quantized(write_model(tmp_path / "olmo", {"model_type": "olmo", **BASE}), tmp_path / "x", "nf4")
    ours, reference = logits(directory / "nf4", tmp_path), zoo_logits(directory / "dense", IDS)
    np.testing.assert_allclose(ours, reference, atol=1e-3)


def test_gpt_oss_has_the_logits_of_its_experts_in_floats(tmp_path: Path) -> None:
    """Also where the experts' kernels, with biases and a clamped gate, read 4 bits."""
    fields = {**ZOO["gpt_oss"], "intermediate_size": 64}
    directory = write_gpt_oss(write_model(tmp_path / "gpt_oss", fields), tmp_path / "x")
    ours, reference = logits(directory / "mxfp4", tmp_path), zoo_logits(directory / "dense", IDS)
    np.testing.assert_allclose(ours, reference, atol=1e-3)
    assert (ours.argmax(-1) == reference.argmax(-1)).all()
    check_on_a_gpu(directory / "mxfp4", reference, tmp_path)
