"""A configuration that fits no checkpoint is refused in one line that names its key, before a weight is read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.quantized.methods import METHODS
from convert.quantized.tensors import with_weights
from tests.convert.quantized.goldens import ATTENTION, CASES, CODES, GOLDENS, MODULE, STATE, WEIGHT, Arrays, opened

SLOW = r"re:(?:.|..|...)*0$"
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}

BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block"}


def groups(targets: object = ("Linear",), **weights: Any) -> dict[str, Any]:
    targets = list(targets) if isinstance(targets, tuple) else targets
    return {"config_groups": {"group_0": {"targets": targets, "weights": {**WEIGHTS, **weights}}}}


def mixed(settings: object) -> dict[str, Any]:
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a.b": settings}}


@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("auto_gptq-4bit_act", {"bits": "4"}, "config: bits must be a positive integer, got '4'"),
        ("auto_gptq-4bit_act", {"bits": 5}, "bits must be one of 2, 3, 4, 8, got '5'"),
        ("auto_gptq-4bit_act", {"bits": None}, "bits is missing"),
        ("auto_gptq-4bit_act", {"bits": 8}, "qzeros' has 4 words for 32 outputs, must have 8"),
        ("auto_gptq-4bit_act", {"group_size": 0}, "group_size must be a positive integer, or -1, got '0'"),
        ("auto_gptq-4bit_act", {"group_size": "32"}, "group_size must be a positive integer, or -1, got '32'"),
        ("gptqmodel-4bit_no_g_idx", {"group_size": 64}, "scales' has 3 groups, 96 inputs in groups of 64 must have 2"),
        ("gptqmodel-4bit_no_g_idx", {"desc_act": True}, "lacks tensor '.*g_idx'"),
        ("auto_gptq-4bit_act", {"desc_act": "yes"}, "desc_act must be true or false, got 'yes'"),
        ("auto_gptq-4bit_act", {"checkpoint_format": "marlin"}, "checkpoint_format must be gptq or gptq_v2"),
        ("auto_gptq-4bit_act", {"checkpoint_format": "gptq_p"}, "checkpoint_format must be gptq or gptq_v2"),
        ("auto_gptq-4bit_act", {"checkpoint_format": None, "format": "bitblas"}, "format must be gptq or gptq_v2"),
        ("auto_gptq-4bit_act", {"is_marlin_format": True}, "is_marlin_format must be false"),
        ("auto_gptq-4bit_act", {"rotation": "hadamard"}, "rotation must be null: .*not rotated here, got 'hadamard'"),
        ("autoawq-g32", {"version": "gemv_fast"}, "version must be gemm or exllama or gemv, got 'gemv_fast'"),
        ("autoawq-g32", {"version": "marlin"}, "version must be gemm or exllama or gemv, got 'marlin'"),
        (
            "autoawq-g32",
            {"version": None, "checkpoint_format": "llm-awq"},
            "checkpoint_format must be gemm or exllama or",
        ),
        ("autoawq-g32", {"version": "gemv"}, r"qzeros' has shape \[3, 4\], must have \[96, 4\]"),
        ("autoawq-gemv_g32", {"version": "gemm"}, r"qweight' has shape \[32, 12\], must have"),
        ("autoawq-gemv_g32", {"group_size": None}, "group_size is missing"),
        ("autoawq-gemv_g32", {"group_size": -1}, "group_size must be a positive integer, got '-1'"),
        ("autoawq-gemv_g32", {"group_size": 16}, "group_size must be 32, 64 or at least 128, got '16'"),
        ("autoawq-gemv_g32", {"group_size": 64}, "has 96 inputs, which groups of 64 do not divide"),
        ("autoawq-gemv_g64", {"group_size": 192}, r"qzeros' has shape \[32, 2\], must have \[32, 1\]"),
        ("autoawq-gemv_g128", {"group_size": 256}, "has more than the 1 groups that 256 inputs of 256 each are"),
        ("autoawq-g32", {"bits": 3}, "bits must be 4, got '3'"),
        ("autoawq-g32", {"group_size": 16}, "scales' has 3 groups, 96 inputs in groups of 16 must have 6"),
        ("bitsandbytes-nf4", {"load_in_4bit": False}, "load_in_4bit or load_in_8bit, and one of them alone, must be"),
        ("bitsandbytes-nf4", {"load_in_8bit": True}, "load_in_4bit or load_in_8bit, and one of them alone, must be"),
        ("bitsandbytes-nf4", {"load_in_4bit": "true"}, "load_in_4bit must be true or false"),
        ("bitsandbytes-nf4", {"load_in_4bit": False, "load_in_8bit": True}, "says bitsandbytes, but no tensor ends in"),
        ("transformers-fp8_block", {"weight_block_size": [0, 128]}, "weight_block_size must be two positive integers"),
        ("transformers-fp8_block", {"weight_block_size": [48, 32, 1]}, "weight_block_size must be two positive"),
        ("transformers-fp8_block", {"weight_block_size": "128"}, "weight_block_size must be two positive integers"),
        ("transformers-fp8_block", {"weight_block_size": None}, r"scale_inv' has shape \[3, 3\], must have one scale"),
        ("transformers-fp8_block", {"fmt": "e5m2"}, "fmt must be e4m3"),
        ("transformers-fp8_block", {"weight_scale_semantics": "forward"}, "weight_scale_semantics must be inverse"),
        ("modelopt-fp8", {"quant_algo": "W4A8_AWQ"}, "must be one of FP8, .*NVFP4, MIXED_PRECISION, got 'W4A8_AWQ'"),
        ("modelopt-fp8", mixed({"quant_algo": "W4A16_AWQ"}), "quantized_layers: a.b must have a quant_algo of FP8"),
        ("modelopt-fp8", mixed({}), "quantized_layers: a.b: quant_algo is missing"),
        ("modelopt-fp8", mixed("FP8"), "a.b must be an object"),
        ("modelopt-fp8", {"quant_algo": "NVFP4"}, "says modelopt, but no tensor ends in .weight_scale_2"),
        ("compressed_tensors-w4_group", {"config_groups": {}}, "config_groups must describe at least one group"),
        ("compressed_tensors-w4_group", {"config_groups": {"0": ATTENTION}}, "must describe at least one group of wei"),
        ("compressed_tensors-w4_group", {"config_groups": []}, "config_groups must be an object"),
        ("compressed_tensors-w4_group", {"config_groups": {"group_0": None}}, "group_0 must be an object"),
        ("compressed_tensors-w4_group", {"config_groups": {"group_0": {}}}, "group_0: weights must be an object"),
        ("compressed_tensors-w4_group", groups(num_bits="4"), "num_bits must be a positive integer, got '4'"),
        ("compressed_tensors-w4_group", groups(num_bits=6), "num_bits must be one of 2, 3, 4, 8"),
        ("compressed_tensors-w4_group", groups(type="float"), "num_bits must be one of 2, 3, 4, 8, integers"),
        ("compressed_tensors-w4_group", groups(type="bf"), "type must be int or float"),
        ("compressed_tensors-w4_group", groups(strategy="attn_head"), "strategy must be one of tensor, channel"),
        ("compressed_tensors-w4_group", groups(strategy=["group"]), "strategy must be one of tensor, channel"),
        ("compressed_tensors-w4_group", groups(group_size=0), "group_size must be a positive integer, or -1"),
        ("compressed_tensors-w4_group", groups(group_size=48), "has 3 groups, 96 inputs in groups of 48 must have 2"),
        ("compressed_tensors-w4_group", groups(symmetric=False), "lacks tensor '.*weight_zero_point'"),
        ("compressed_tensors-w4_group", groups(actorder="group"), "lacks tensor '.*weight_g_idx'"),
        ("compressed_tensors-w4_group", groups(("re:.*mlp.*",)), "config_groups have no target for 'model.layers.0"),
        ("compressed_tensors-w4_group", groups("Linear"), "targets must be a list of names"),
        ("compressed_tensors-w4_group", groups(()), "targets must be a list of names"),
        ("compressed_tensors-w4_group", groups(("re:(",)), r"have a target 're:\(' that cannot be matched"),
        ("compressed_tensors-w4_group", groups((SLOW,)), "that cannot be matched .TimeoutError"),
        (
            "compressed_tensors-w4_group",
            groups() | {"format": "marlin-24"},
            "format must be one of int-quantized, .*'marlin-24'",
        ),
        ("compressed_tensors-w4_group", {"transform_config": {"a": 1}}, "transform_config is not supported"),
        ("compressed_tensors-w4_group", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "format must be dense"),
        ("compressed_tensors-fp8_block", groups(**BLOCKS), "block_structure must be"),
        (
            "compressed_tensors-fp8_block",
            groups(**BLOCKS, block_structure="16x"),
            "block_structure must be two",
        ),
        (
            "compressed_tensors-fp8_block",
            groups(**BLOCKS, block_structure="16"),
            "block_structure must be two",
        ),
        ("auto_gptq-4bit_act", {"quant_method": None}, "quant_method is missing"),
        ("auto_gptq-4bit_act", {"quant_method": 5}, "quant_method must be a string"),
        *(
            (
                "auto_gptq-4bit_act",
                {"quant_method": each},
                f"quant_method must be one of .*, torchao: name a checkpoint in one of these, or .*, got '{each}'",
            )
            for each in ("exl2", "exl3", "quip", "aqlm", "marlin", "quark", "vptq", "bitnet")
        ),
        (
            "auto_round-4bit_plain",
            {"packing_format": "auto_round:llm_compressor"},
            "packing_format must be that of GPTQ",
        ),
        ("auto_round-4bit_plain", {"packing_format": 4}, "packing_format must be a string"),
        ("auto_round-4bit_plain", {"packing_format": "auto_round:gptq:marlin"}, "packing_format must be that of GPTQ"),
        ("auto_round-4bit_plain", {"rotation_config": {"block_size": 32}}, "rotation_config is not supported: activ"),
        ("auto_round-4bit_plain", {"spinquant_config": {"r1": True}}, "spinquant_config is not supported: activations"),
        ("auto_round-4bit_plain", {"data_type": "mx_fp"}, "data_type must be int, got 'mx_fp'"),
    ],
)
def test_a_configuration_that_fits_no_checkpoint_is_refused_by_its_key(
    case: str, settings: dict[str, Any], message: str
) -> None:
    golden = GOLDENS[case]
    tensors = golden.tensors()
    with pytest.raises(CheckpointError, match=message) as caught:
        opened(golden, tensors, **settings)
    assert "config.json: quantization_config" in str(caught.value) or MODULE in str(caught.value)
    assert not {f"{MODULE}{each}" for each in CODES} & set(tensors.reads)


@pytest.mark.parametrize("value", [[], "gptq", 4, True])
def test_a_quantization_config_must_be_an_object(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: quantization_config must be an object, got"):
        with_weights(Config({"quantization_config": value}, "config.json"), Arrays({}))


@pytest.mark.parametrize("both", [False, True])
def test_a_checkpoint_of_mlx_is_refused_by_name(both: bool) -> None:
    """Newer ones have its settings under the usual name too."""
    settings = {"group_size": 64, "bits": 4, "mode": "affine"}
    config = {"quantization": settings} | ({"quantization_config": settings} if both else {})
    tensors = Arrays({WEIGHT: np.zeros((4, 4), np.uint32), f"{MODULE}.scales": np.zeros((4, 1), np.float16)})
    with pytest.raises(CheckpointError, match=r"config.json: quantization is that of MLX.*: name the model"):
        with_weights(Config(config, "config.json"), tensors)


@pytest.mark.parametrize(
    "suffix", [".qweight", ".weight_packed", ".W_q", ".SCB", STATE, ".q_weight", ".trellis", "._weight_qdata"]
)
def test_quantised_tensors_without_a_configuration_are_refused(suffix: str) -> None:
    tensors = Arrays({f"{MODULE}{suffix}": np.zeros((4, 4), np.int32)})
    with pytest.raises(
        CheckpointError, match=rf"{MODULE}{suffix}' is quantised, but config.json lacks a quantization_"
    ):
        with_weights(Config({}, "config.json"), tensors)


def test_the_readme_lists_every_method() -> None:
    text = (Path(__file__).parents[3] / "convert" / "README.md").read_text()
    table = text.partition("## Quantised checkpoints")[2].partition("\n- ")[0]
    named = {name for row in re.findall(r"^\|([^|]*)\|", table, re.MULTILINE) for name in re.findall("`([^`]+)`", row)}
    assert METHODS.keys() - {"intel/auto-round"} == named - {"quant_method", "gguf"}  # the last is a file, not a method


HOSTILE = (None, [], {}, [[]], "x", "", -1, 0, 1, 2**40, 1.5, True, False)
LAYOUTS = {"checkpoint_format", "packing_format"}  # say what the tensors mean


def hostile(value: Any) -> Iterator[tuple[str, Any]]:
    """`value` with each part of it replaced in turn, and the key of that part."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for at, changed in [*((key, each) for each in HOSTILE), *hostile(inner)]:
            copied = value.copy()
            copied[key] = changed
            yield at, copied


@pytest.mark.parametrize("name", CASES)
def test_no_value_in_a_configuration_does_harm(name: str) -> None:
    golden = GOLDENS[name]
    matrix = golden.opened().read(WEIGHT, golden.dense.shape, ())
    for key, quantization in hostile(golden.config):
        try:
            found = with_weights(Config({"quantization_config": quantization}, "config.json"), golden.tensors())
        except CheckpointError as error:
            assert len(str(error)) < 1000
            continue
        if key not in LAYOUTS:
            np.testing.assert_array_equal(found.read(WEIGHT, matrix.shape, ()), matrix, f"{key} of {quantization}")
