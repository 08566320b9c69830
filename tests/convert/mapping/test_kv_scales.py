"""Scales for a cache of 8 bits are read under every name that calibration tools give them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.checkpoint import open_checkpoint, write_checkpoint
from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.shards import open_tensors
from jaxengine.architecture.model import ModelSpec
from tests.convert.quantized.goldens import ATTENTION

CopyOf = Callable[[str], Path]
LAYER = "model.layers.{i}.self_attn."
CACHE_ONLY = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def calibrated(directory: Path, **scales: object) -> ModelSpec:
    """The specification of the checkpoint with `scales` added below every layer's attention."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, value in scales.items():
        for i in range(2):
            tensors[LAYER.format(i=i) + name] = np.array(np.multiply(value, i + 1), np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    return compose(Config.load(directory / "config.json"), open_tensors(directory)).spec


@pytest.mark.parametrize(
    ("scales", "first"),
    [
        pytest.param({"k_scale": 0.5, "v_scale": [0.25]}, (0.5, 0.25), id="vllm"),
        pytest.param({"attn.k_scale": 0.5, "attn.v_scale": 0.25, "attn.q_scale": 9}, (0.5, 0.25), id="vllm, saved"),
        pytest.param({"k_proj.k_scale": 0.5, "v_proj.v_scale": 0.25}, (0.5, 0.25), id="modelopt"),
        pytest.param({"qkv_proj.k_scale": 0.5, "qkv_proj.v_scale": 0.25}, (0.5, 0.25), id="fused"),
        pytest.param(
            {"k_proj.output_scale": 0.5, "v_proj.output_scale": 0.25, "q_proj.output_scale": 9, "prob_output_scale": 9},
            (0.5, 0.25),
            id="compressed-tensors",
        ),
        pytest.param({"kv_scale": 0.5}, (0.5, 0.5), id="autofp8"),
        pytest.param({"kv_scale": 0.5, "k_scale": 0.25}, (0.25, 0.5), id="one for both, and one"),
        pytest.param({"v_scale": 0.25}, (1.0, 0.25), id="one half"),
        pytest.param({}, None, id="none"),
    ],
)
def test_scales_are_read_in_every_spelling(
    scales: dict[str, object], first: tuple[float, float] | None, copy_of: CopyOf
) -> None:
    found = calibrated(copy_of("llama2_gqa"), **scales).cache_scales
    second = first and tuple(each if each == 1 else 2 * each for each in first)
    assert found == ((first, second) if first else ())


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"k_scale": [0.5, 0.5]}, r"self_attn.k_scale' must be one floating number a layer, has shape \[2\], float32"),
        ({"k_scale": 0.0}, "must be positive and finite, got 0.0"),
        ({"v_scale": -1}, "must be positive and finite, got -1.0"),
        ({"v_scale": np.nan}, "must be positive and finite, got nan"),
        ({"k_zero_point": 0.5}, "the model has no place for 2 tensors: 'model.layers.0.self_attn.k_zero_point'"),
    ],
)
def test_a_malformed_scale_is_refused(scales: dict[str, object], message: str, copy_of: CopyOf) -> None:
    with pytest.raises(CheckpointError, match=message):
        calibrated(copy_of("llama2_gqa"), **scales)


def test_a_scale_of_a_layer_that_is_not_there_is_refused(copy_of: CopyOf) -> None:
    directory = copy_of("llama2_gqa")
    path = directory / "model.safetensors"
    save_file(load_file(path) | {"model.layers.2.self_attn.k_scale": np.float32([1])}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers.2.self_attn.k_scale' is of none of the 2 layers"):
        compose(Config.load(directory / "config.json"), open_tensors(directory))


def test_our_own_checkpoint_keeps_the_scales(copy_of: CopyOf, tmp_path: Path) -> None:
    directory = copy_of("llama2_gqa")
    spec = calibrated(directory, kv_scale=0.5)
    source = compose(Config.load(directory / "config.json"), open_tensors(directory))
    write_checkpoint(source, directory, tmp_path / "out")
    assert open_checkpoint(tmp_path / "out", tmp_path / "verified").spec.cache_scales == spec.cache_scales != ()


@pytest.mark.parametrize(
    ("quantization", "taken"),
    [
        ({"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": CACHE_ONLY}, True),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"0": ATTENTION}, "kv_cache_scheme": CACHE_ONLY},
            True,
        ),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, True),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, True),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "NVFP4"}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": CACHE_ONLY}, False),
        ({"quant_method": "compressed-tensors", "config_groups": {"0": {}}, "kv_cache_scheme": CACHE_ONLY}, False),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {**CACHE_ONLY, "num_bits": 4}}, False),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {**CACHE_ONLY, "type": "int"}}, False),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {**CACHE_ONLY, "symmetric": False}}, False),
        ({"quant_method": "gptq", "kv_cache_scheme": CACHE_ONLY}, False),
    ],
)
def test_a_checkpoint_may_have_a_quantised_cache_alone(
    quantization: dict[str, object], taken: bool, copy_of: CopyOf
) -> None:
    directory = copy_of("llama2_gqa")
    config = Config.load(directory / "config.json")
    described = Config({**config.values, "quantization_config": quantization}, "config.json")
    if taken:
        compose(described, open_tensors(directory))
        return
    with pytest.raises(CheckpointError, match=r"quantization_config[: ]"):
        compose(described, open_tensors(directory))
