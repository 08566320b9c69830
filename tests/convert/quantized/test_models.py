"""Quantised checkpoints of whole models: their parameters are those of the floats that the written numbers stand for.

Fused projections, rows in another order, matrices stored `[in, out]` and experts, in floats and as they are stored.
"""

import json
import math
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.shards import open_tensors
from convert.source import open_model
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from jaxengine.architecture.weight_format import Component, StoredWeight
from tests.conftest import Checkpoints
from tests.tiny_quantized import (
    FORMATS,
    GROUP,
    Format,
    packed,
    write_awq,
    write_fp4,
    write_fp8,
    write_mxfp8,
    write_quantized,
)
from tests.tiny_vision import write_vision

PROJECTIONS = {"qkv", "out", "gate_up", "down", "experts_gate_up", "experts_down"}
FAMILIES = {  # with what is special
    "gpt2": "fused rows, matrices stored [in, out]",
    "mixtral": "experts",
    "codegen": "rows of q and k in another order, qkv in parts",
    "gpt_neox": "qkv interleaved by head",
    "falcon_40b": "qkv interleaved by key/value head",
    "phi3": "qkv and gate_up in one tensor each",
    "bloom": "qkv interleaved by head, biases",
}
OF_MODULES = {  # as ModelOpt writes them; tensors tell which is which
    "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
    "model.layers.0.self_attn.o_proj": {"quant_algo": "MXFP8", "group_size": 32},
}


def opened(directory: Path) -> ParameterSource:
    return compose(Config.load(directory / "config.json"), open_tensors(directory))


def multiplied_out(stored: StoredWeight, shape: tuple[int, ...], inputs: int) -> np.ndarray:
    """A matrix from its components, all read whole."""
    format, outputs = stored.format, shape[: len(shape) - inputs]
    groups = math.prod(shape[len(outputs) :]) // format.group if format.group else 1
    parts: dict[Component, np.ndarray] = {name: stored.read(name, ()) for name in format.dtypes}
    assert {name: part.dtype.name for name, part in parts.items()} == format.dtypes
    order = parts.pop("order", None)
    wide = (*outputs, groups, -1)
    values = parts["values"].reshape(wide)
    numbers = np.asarray(format.table, np.float32)[values] if format.table else values.astype(np.float32)
    shared = {name: parts[name].astype(np.float32).reshape(*outputs, groups, 1) for name in parts if name != "values"}
    product = (numbers - shared.get("zeros", np.float32(0))) * shared["scales"]
    if format.ordered:
        product = product.reshape(*outputs, -1)[..., np.argsort(order)]
    return product.reshape(shape)


def check_words(stored: StoredWeight, shape: tuple[int, ...], inputs: int) -> None:
    """They hold the values, with inputs as the model has them."""
    codes = stored.read("values", ()) + np.int16(stored.format.offset)
    if stored.format.ordered:
        order = np.argsort(stored.read("order", ()))
        codes = codes.reshape(*shape[: len(shape) - inputs], -1)[..., order].reshape(shape)
    expected = packed(codes.reshape(-1, shape[-1]), 4).view(np.uint32).reshape(*shape[:-1], -1)
    np.testing.assert_array_equal(stored.read("words", ()), expected)
    middle = tuple(slice(size // 2, size) for size in expected.shape)
    np.testing.assert_array_equal(stored.read("words", middle), expected[middle])


def check(target: Path, format: str) -> set[str]:
    """Which parameters keep the format that they are stored in."""
    ours, dense = opened(target / format), opened(target / "dense")
    assert ours.spec == dense.spec
    kept = set()
    for name, parameter in parameter_table(ours.spec).items():
        whole = dense.read(name, ())
        np.testing.assert_array_equal(ours.read(name, ()), whole, name)
        middle = tuple(slice(size // 2, size) for size in parameter.shape)
        np.testing.assert_array_equal(ours.read(name, middle), whole[middle], name)
        if stored := ours.stored(name):
            kept.add(name)
            np.testing.assert_array_equal(multiplied_out(stored, parameter.shape, parameter.inputs), whole, name)
            np.testing.assert_array_equal(stored.read("values", middle), stored.read("values", ())[middle])
            if stored.packed:
                check_words(stored, parameter.shape, parameter.inputs)
            rows = middle[: len(parameter.shape) - parameter.inputs]
            np.testing.assert_array_equal(stored.read("scales", rows), stored.read("scales", ())[rows])
    return kept


@pytest.mark.parametrize("format", FORMATS)
def test_a_llama_in_every_format_has_the_floats_that_were_written(
    format: str, tiny: Checkpoints, tmp_path: Path
) -> None:
    kept = check(write_quantized(tiny("llama2_gqa"), tmp_path, format), format)
    projections = {f"layers.{i}.{kind}" for i in range(2) for kind in ("qkv", "out", "gate_up", "down")}
    assert kept == projections


@pytest.mark.parametrize("change", ["in another order", "of two sizes"])
def test_groups_that_no_single_order_makes_regular_are_read_in_floats(
    change: str, tiny: Checkpoints, tmp_path: Path
) -> None:
    """q, k and v read the same inputs; an order of their own each would be three products."""
    directory = write_quantized(tiny("llama2_gqa"), tmp_path, "gptq_act")
    before = opened(directory / "gptq_act").read("layers.0.qkv", ())
    path = directory / "gptq_act" / "model.safetensors"
    tensors = load_file(path)
    of_inputs = tensors["model.layers.0.self_attn.k_proj.g_idx"]
    if change == "in another order":
        of_inputs[:] = of_inputs[::-1]
    else:
        of_inputs[np.flatnonzero(of_inputs)[0]] = 0
    save_file(tensors, path)
    source = opened(directory / "gptq_act")
    assert source.stored("layers.0.qkv") is None
    assert source.stored("layers.0.gate_up") is not None
    assert (source.read("layers.0.qkv", ()) != before).any()


@pytest.mark.parametrize("format", ["gptq_asym", "gptq_act", "nf4", "eetq", "fp8_blocks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_lay_quantised_matrices_out_as_they_do_floats(
    family: str, format: str, zoo: Checkpoints, tmp_path: Path
) -> None:
    kept = check(write_quantized(zoo(family), tmp_path, format), format)
    assert {name.rpartition(".")[2] for name in kept} <= PROJECTIONS
    assert kept


def test_modules_of_auto_round_may_have_groups_of_their_own_in_the_layout_of_awq(
    tiny: Checkpoints, tmp_path: Path
) -> None:
    settings = {f"model.layers.{i}.mlp.down_proj": {"bits": 4, "group_size": 2 * GROUP} for i in range(2)}
    config = {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": GROUP}
    mixed = Format(config | {"extra_config": settings}, write_awq, {"down_proj": partial(write_awq, group=2 * GROUP)})
    assert "layers.0.down" in check(write_quantized(tiny("llama2_gqa"), tmp_path, mixed), "quantised")


def test_modules_of_modelopt_may_be_of_any_of_its_formats(tiny: Checkpoints, tmp_path: Path) -> None:
    """q, k and v are one product here, so they are read in floats where they differ."""
    others = {"v_proj": partial(write_fp8, shape="whole"), "down_proj": partial(write_fp8, shape="channels")}
    mixed = Format(
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": OF_MODULES},
        partial(write_fp4, style="modelopt"),
        others | {"o_proj": write_mxfp8},
    )
    kept = check(write_quantized(tiny("llama2_gqa"), tmp_path, mixed), "quantised")
    assert kept == {f"layers.{i}.{kind}" for i in range(2) for kind in ("out", "gate_up", "down")}


def test_a_quantised_product_of_a_square_of_features_lies_as_it_does_in_floats(tmp_path: Path) -> None:
    """The features lie in another order than the model's, behind the outputs, whatever the type of the matrix."""
    check(write_quantized(write_vision(tmp_path / "floats", "mistral3"), tmp_path, "nf4"), "nf4")


def test_a_configuration_in_a_file_of_the_tool_s_own_counts_as_one_in_config_json(
    tiny: Checkpoints, tmp_path: Path
) -> None:
    directory = write_quantized(tiny("llama2_gqa"), tmp_path, "gptq") / "gptq"
    config = json.loads((directory / "config.json").read_text())
    quantization = config.pop("quantization_config")
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"tensor '.*qweight' is quantised, but .* lacks a quantization_config"):
        open_model(str(directory), cache_dir=tmp_path / "cache")
    (directory / "quantize_config.json").write_text(json.dumps(quantization))
    assert open_model(str(directory), cache_dir=tmp_path / "cache").source.stored("layers.0.qkv") is not None


@pytest.mark.parametrize("place", ["quantization_config", "compression_config"])
def test_weights_of_which_many_are_0_are_floats_where_all_are_stored(
    place: str, tiny: Checkpoints, tmp_path: Path
) -> None:
    """As llm-compressor writes a model in 2:4 that it did not quantise."""
    directory = Path(shutil.copytree(tiny("llama"), tmp_path / "pruned"))
    config = json.loads((directory / "config.json").read_text())
    sparsity = {"format": "dense", "sparsity_structure": "2:4", "targets": ["Linear"]}
    config[place] = {"quant_method": "compressed-tensors", "config_groups": {}, "sparsity_config": sparsity}
    (directory / "config.json").write_text(json.dumps(config))
    model = open_model(str(directory), cache_dir=tmp_path / "cache")
    assert model.quantization is None and model.source.stored("layers.0.qkv") is None
    sparsity["format"] = "sparse-24-bitmask"
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="sparsity_config: format must be dense, got 'sparse-24-bitmask'"):
        open_model(str(directory), cache_dir=tmp_path / "cache")


def test_a_matrix_of_another_shape_than_the_model_s_is_refused(tiny: Checkpoints, tmp_path: Path) -> None:
    directory = write_quantized(tiny("llama2_gqa"), tmp_path, "gptq") / "gptq"
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(CheckpointError, match=r"gate_proj.weight' has shape \[96, 64\], the configuration says \[128"):
        opened(directory)
