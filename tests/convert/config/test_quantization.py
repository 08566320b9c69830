"""How weights are quantised is read wherever a tool has written it, and named there in an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from convert.config.config import Config
from convert.config.quantization import add_quantization
from convert.errors import CheckpointError
from convert.quantized.method import Method
from convert.quantized.methods import method_of

GPTQ = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "damp_percent": 0.01, "true_sequential": True}
AWQ = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
PACKED = {"format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": W4}}}
DENSE = {"format": "dense", "global_sparsity": 0.1, "sparsity_structure": "unstructured"}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
ONLY_CACHE = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8", "exclude_modules": []}}


def written(directory: Path, config: dict[str, Any], **files: object) -> Config:
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    for name, values in files.items():
        (directory / f"{name}.json").write_text(json.dumps(values))
    read = Config.load(directory / "config.json")
    add_quantization(read, directory)
    return read


def method_in(directory: Path, config: dict[str, Any], **files: object) -> Method | None:
    return method_of(written(directory, config, **files))


@pytest.mark.parametrize(
    ("config", "files", "name"),
    [
        ({"quantization_config": {"quant_method": "gptq", **GPTQ}}, {}, "gptq"),
        ({}, {"quantize_config": GPTQ}, "gptq"),
        ({}, {"quantize_config": {**GPTQ, "quant_method": "awq"}}, "awq"),
        ({}, {"quant_config": AWQ}, "awq"),
        ({}, {"hf_quant_config": MODELOPT}, "modelopt"),
        ({"compression_config": PACKED}, {}, "compressed-tensors"),
        ({"compression_config": {**PACKED, "sparsity_config": DENSE}}, {}, "compressed-tensors"),
        ({"text_config": {"quantization_config": {"quant_method": "awq", **AWQ}}}, {}, "awq"),
        pytest.param({"quantization_config": {"load_in_4bit": True}}, {}, "bitsandbytes", id="bitsandbytes of old"),
        pytest.param(
            {"quantization_config": {"quant_method": "awq", **AWQ}},
            {"quantize_config": GPTQ},
            "awq",
            id="config.json wins",
        ),
    ],
)
def test_every_place_is_read(config: dict[str, Any], files: dict[str, Any], name: str, tmp_path: Path) -> None:
    method = method_in(tmp_path, config, **files)
    assert method is not None
    assert method.name == name


@pytest.mark.parametrize(
    ("spelling", "settings", "name"),
    [
        ("GPTQ", GPTQ, "gptq"),
        ("AWQ", AWQ, "awq"),
        ("compressed_tensors", PACKED, "compressed-tensors"),
        ("Auto-Round", GPTQ, "gptq"),
        ("fbgemm-fp8", {}, "fp8"),
        ("ModelOpt", {"quant_algo": "NVFP4"}, "modelopt"),
    ],
)
def test_a_method_may_be_written_in_capitals_and_with_either_dash(
    spelling: str, settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    method = method_in(tmp_path, {"quantization_config": {**settings, "quant_method": spelling}})
    assert method is not None
    assert method.name == name


@pytest.mark.parametrize("files", [{}, {"hf_quant_config": ONLY_CACHE}, {"generation_config": {}}])
def test_weights_that_are_not_quantised_have_no_method(files: dict[str, Any], tmp_path: Path) -> None:
    assert method_in(tmp_path, {}, **files) is None


@pytest.mark.parametrize(
    ("config", "files", "message"),
    [
        ({}, {"quantize_config": {**GPTQ, "bits": "4"}}, r"/quantize_config.json: bits must be a positive integer"),
        ({}, {"quantize_config": [4]}, r"/quantize_config.json: must hold a JSON object, got list"),
        ({}, {"quant_config": {**AWQ, "version": "marlin"}}, r"/quant_config.json: version must be gemm or"),
        (
            {},
            {"hf_quant_config": {"quantization": {"quant_algo": "W4A8"}}},
            "/hf_quant_config.json: quant_algo must be",
        ),
        ({}, {"hf_quant_config": {"producer": {}}}, "/hf_quant_config.json: must hold an object that describes"),
        ({"compression_config": 4}, {}, "config.json: compression_config: must hold an object"),
        ({"compression_config": {**PACKED, "format": "marlin-24"}}, {}, "compression_config: format must be one of"),
        ({"text_config": {"quantization_config": "awq"}}, {}, "config.json: text_config: quantization_config: must"),
    ],
)
def test_an_error_names_the_file_and_the_key(
    config: dict[str, Any], files: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        method_in(tmp_path, config, **files)
