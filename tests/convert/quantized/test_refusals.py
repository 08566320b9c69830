"""A damaged quantised checkpoint is refused in one line that names tensor or key, before a weight is read."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.quantized.methods import METHODS
from convert.quantized.tensors import QuantizedTensors, with_weights
from tests.convert.quantized.goldens import GOLDENS, MODULE, WEIGHT, Arrays, Golden

CODES = (".qweight", ".weight_packed", ".W_q", ".weight", "._weight_qdata")
OTHER_WEIGHTS = (*CODES, ".qzeros", ".weight_zero_point", ".weight.absmax")  # whose every value is a valid one
WHOLE_ZEROS = "._weight_zero_point"  # each of which is valid, and which torchao 0.16 had none of
HARMLESS = {(WHOLE_ZEROS, kind) for kind in ("missing", "another value")}
CASES = [  # one of each layout
    *("auto_gptq-4bit_asym_act", "gptqmodel-3bit_v1", "gptqmodel-4bit_no_g_idx", "gptqmodel-8bit_odd_v1"),
    *("autoawq-g32", "autoawq-gemv_g32", "bitsandbytes-nf4_double", "bitsandbytes-nf4_double_bf16", "bitsandbytes-fp4"),
    *("bitsandbytes-int8", "hqq-4bit_32_float32", "hqq-2bit_32_bfloat16", "hqq-3bit_32_float32"),
    *("compressed_tensors-w4_group_asym", "compressed_tensors-w3_group", "compressed_tensors-w4_channel"),
    *("compressed_tensors-int8_channel_asym", "compressed_tensors-int8_tensor", "compressed_tensors-fp8_block_ragged"),
    *("compressed_tensors-fp8_group", "compressed_tensors-nvfp4", "compressed_tensors-mxfp4"),
    *("compressed_tensors_0_9-w4_act", "modelopt-nvfp4", "modelopt-fp8", "transformers-fp8_block"),
    *("torchao-int8_rows", "torchao-int8_rows_asym", "torchao-int4_dynamic_asym", "torchao-fp8_tensor"),
    "torchao-int4_bf16",
]


def opened(golden: Golden, tensors: Arrays, **settings: Any) -> QuantizedTensors:
    found = with_weights(golden.configuration(**settings), tensors)
    assert isinstance(found, QuantizedTensors)
    return found


def damages(array: np.ndarray) -> Iterator[tuple[str, np.ndarray | None]]:
    """Every way to damage a tensor, with whether it is its shape, its type or its values."""
    yield "missing", None
    yield "another axis", array[None]
    yield "no rows", array.reshape(-1)[:0]
    for axis in range(array.ndim):
        yield "one less", np.take(array, range(array.shape[axis] - 1), axis)
        yield "one more", np.concatenate([array, np.take(array, [0], axis)], axis)
    if array.shape != array.shape[::-1]:
        yield "turned", array.T
    for dtype in ("int16", "uint16", "float64", "bool"):
        yield "another type", np.zeros(array.shape, dtype)
    for value in (np.nan, np.inf, -np.inf) if array.dtype.kind not in "iu" else (-1, 2**31 - 1):
        changed = array.copy()
        with np.errstate(all="ignore"):
            changed.reshape(-1)[-1:] = np.array([value]).astype(array.dtype)
        yield "another value", changed


@pytest.mark.parametrize("name", CASES)
def test_no_damage_is_loaded_in_silence(name: str) -> None:
    """What is not refused does no harm: the matrix is the same, or has a shape that is not the configuration's."""
    golden = GOLDENS[name]
    matrix = golden.opened().read(WEIGHT, golden.dense.shape, ())
    refused = 0
    for suffix, array in golden.parts.items():
        for kind, damaged in damages(array):
            if (kind == "another value" and suffix in OTHER_WEIGHTS) or (suffix, kind) in HARMLESS:
                continue
            tensors = golden.tensors(**{suffix: damaged})
            try:
                found = opened(golden, tensors)
            except CheckpointError as error:
                assert MODULE in str(error) or "no tensor ends in" in str(error)
                assert not {f"{MODULE}{each}" for each in CODES} & set(tensors.reads)
                refused += 1
                continue
            if found.shape(WEIGHT) == matrix.shape:
                np.testing.assert_array_equal(found.read(WEIGHT, matrix.shape, ()), matrix, f"{suffix} {kind}")
    assert refused > 3 * min(len(golden.parts), 6)


def bytes_of(state: Any) -> np.ndarray:
    return np.frombuffer(state if isinstance(state, bytes) else json.dumps(state).encode(), np.uint8)


STATE = ".weight.quant_state.bitsandbytes__nf4"
NF4 = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [32, 128]}
DOUBLE = {**NF4, "blocksize": 32, "shape": [48, 192], "nested_blocksize": 256, "nested_offset": 0.1}


@pytest.mark.parametrize(
    ("case", "suffix", "change", "message"),
    [
        ("auto_gptq-4bit_act", ".g_idx", lambda a: a - 1, r"g_idx' has an input of group -1, must be of 0 to 2"),
        ("auto_gptq-4bit_act", ".g_idx", lambda a: a + 1, r"g_idx' has an input of group 3, must be of 0 to 2"),
        ("auto_gptq-4bit_act", ".g_idx", None, "lacks tensor 'model.layers.0.self_attn.q_proj.g_idx'"),
        ("auto_gptq-4bit_act", ".qweight", lambda a: a[1:], r"qweight' has shape \[11, 32\], must have \[12, 32\]"),
        ("auto_gptq-4bit_act", ".qzeros", lambda a: a[:, 1:], "qzeros' has 3 words for 32 outputs, must have 4"),
        ("auto_gptq-4bit_act", ".scales", lambda a: a * np.nan, "scales' has a scale that is not finite"),
        (
            "gptqmodel-4bit_no_g_idx",
            ".qweight",
            lambda a: a[:5],
            "scales' has 3 groups, 40 inputs in .* 32 must have 2",
        ),
        ("autoawq-g32", ".scales", lambda a: a[:2], r"qzeros' has shape \[3, 4\], must have \[2, 4\]"),
        ("bitsandbytes-int8", ".weight_format", lambda a: a + 1, "weight_format' is not 0"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of(b"{"), "nf4' does not describe a matrix .JSONDecodeError"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of(b"\xff\xfe"), "nf4' does not describe a matrix"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of(b"[" * 100_000), "nf4' does not describe a matrix"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of(b"9" * 5000), "nf4' does not describe a matrix"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of([]), "nf4' does not describe a matrix"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "shape": 5}), "nf4' does not describe a matrix"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "shape": [32, -1]}), "describe a matrix: .*-1"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "shape": [32, 1e2]}), "does not describe a matrix"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "shape": [2**30, 2**30]}), "has 2048 bytes, must have"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "shape": [10**400, 1]}), "does not describe a matrix"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "blocksize": 0}), "describe a matrix: .*'blocksize': 0"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "blocksize": 2**30}), r"absmax' .*must have \[1\]"),
        ("bitsandbytes-nf4", STATE, lambda _: bytes_of({**NF4, "quant_type": "fp4"}), "describe a matrix: .*'fp4'"),
        ("bitsandbytes-nf4", STATE, lambda a: a.astype(np.int32), "nf4' has type int32, must have uint8"),
        (
            "bitsandbytes-nf4_double",
            STATE,
            lambda _: bytes_of({**DOUBLE, "nested_blocksize": 2**60}),
            "absmax' has nested blocks of 1152921504606846976",
        ),
        (
            "bitsandbytes-nf4_double",
            STATE,
            lambda _: bytes_of({**DOUBLE, "nested_offset": 10**4000}),
            "absmax' has nested blocks of 256 and offset 1000",
        ),
        (
            "bitsandbytes-nf4_double",
            STATE,
            lambda _: bytes_of({**DOUBLE, "nested_offset": None}),
            "nested blocks of 256 and offset None",
        ),
        ("bitsandbytes-nf4_double", STATE, lambda _: bytes_of({**DOUBLE, "nested_blocksize": 1}), "nested_absmax' has"),
        ("compressed_tensors-w4_group", ".weight_shape", lambda a: a * 2, r"weight_packed' .*must have \[48, 24\]"),
        ("compressed_tensors-w4_group", ".weight_shape", lambda a: a * 0, r"weight_shape' is \[0, 0\], must be posit"),
        ("compressed_tensors-w4_group", ".weight_shape", lambda a: -a, "weight_shape' is .*must be positive"),
        ("compressed_tensors-w4_group", ".weight_shape", lambda a: a * 2**50, "weight_shape' is .*must be positive"),
        ("compressed_tensors-w4_group", ".weight_shape", lambda a: a.astype(np.float32), "must be 2 integers"),
        ("compressed_tensors-w4_group", ".weight_scale", lambda a: a[:, :2], "has 2 groups, 96 .* 32 must have 3"),
        ("compressed_tensors-w4_channel", ".weight_scale", lambda a: np.repeat(a, 2, 1), "has 2 groups, 44 .* have 1"),
        ("compressed_tensors-w4_group_asym", ".weight_zero_point", None, "lacks tensor '.*weight_zero_point'"),
        (
            "compressed_tensors_0_9-w4_act",
            ".weight_g_idx",
            lambda a: a + 9,
            r"weight_g_idx' has an input of group (9|10|11), must be of 0 to 2",
        ),
        ("compressed_tensors_0_9-w4_act", ".weight_g_idx", None, "lacks tensor '.*weight_g_idx'"),
        ("compressed_tensors-nvfp4", ".weight_global_scale", lambda a: a * 0, "must be positive, is 0.0"),
        ("compressed_tensors-mxfp4", ".weight_scale", lambda a: a | 255, "has a scale that is not a number"),
        ("modelopt-nvfp4", ".weight_scale_2", lambda a: -a, "weight_scale_2' must be positive"),
        ("transformers-fp8_block", ".weight_scale_inv", lambda a: a.T, r"has shape \[3, 3\]|must have"),
        ("hqq-4bit_32_float32", ".axis", lambda a: a * 0, "axis' must be 1"),
        ("hqq-4bit_32_float32", ".nbits", lambda a: a * 0 + 5, "nbits' must be one of 8, 4, 3, 2, 1, is 5"),
        ("hqq-4bit_32_float32", ".nbits", lambda a: a * 0 + 3, r"W_q' has shape \[36, 32\], must have \[8, 32\]"),
        ("hqq-4bit_32_float32", ".group_size", lambda a: a * 0, "group_size' 0 does not divide rows of 96"),
        ("hqq-4bit_32_float32", ".group_size", lambda a: -a, "group_size' -32 does not divide rows of 96"),
        ("hqq-4bit_32_float32", ".shape", lambda a: a * 2**40, "W_q"),
        ("hqq-4bit_32_float32", ".view_as_float", lambda a: a * 0 + 1, "view_as_float' is set"),
        (
            "torchao-int8_rows",
            "._weight_scale",
            lambda a: a[:-1],
            r"has shape \[23, 1\], must have one entry, 24 rows",
        ),
        ("torchao-int8_rows", "._weight_scale", lambda a: a.T, r"has shape \[1, 24\], must have one entry, 24 rows"),
        ("torchao-int8_rows", "._weight_scale", lambda a: a * np.inf, "_weight_scale' has a scale that is not finite"),
        ("torchao-int8_rows", "._weight_qdata", lambda a: a.view(np.uint8), "has type uint8, must have int8 or float8"),
        ("torchao-int4_dynamic_asym", "._weight_qdata", lambda a: a[:, 1:], "3 groups, which do not divide 95 inputs"),
        ("torchao-int4_dynamic_asym", "._weight_scale", None, "lacks tensor '.*_weight_scale'"),
        ("torchao-fp8_blocks", "._weight_scale", lambda a: a[[0, 1, 0]], r"\[3, 1\], must have one entry, 256 r"),
        ("torchao-fp8_tensor", "._weight_zero_point", lambda _: np.ones((1, 1), np.int8), "beside float8_e4m3fn, must"),
        ("torchao-int4_bf16", "._weight_scale", lambda a: a * 0, "has a scale of 0, or next to it"),
        ("torchao-int4_bf16", "._weight_zero_point", lambda a: a * np.nan, "zero_point' has a scale that is not fin"),
        ("torchao-int4_bf16", "._weight_zero_point", lambda a: a[:1], r"has shape \[1, 16\], must have \[2, 16\]"),
        ("torchao-int4_bf16", "._weight_act_pre_scale", lambda _: np.ones(128), "act_pre_scale' is not supported"),
        ("torchao-int4_bf16", "._weight_scale_and_zero", lambda _: np.ones(2), "is in the order of a GPU's kernel"),
    ],
)
def test_the_refusal_names_tensor_found_and_expected(
    case: str, suffix: str, change: Callable[[np.ndarray], np.ndarray] | None, message: str
) -> None:
    golden = GOLDENS[case]
    damaged = None if change is None else change(golden.parts.get(suffix, np.empty(0)))
    if case == "transformers-fp8_block":
        damaged = np.concatenate([golden.parts[suffix]] * 2)
    with pytest.raises(CheckpointError, match=message) as caught:
        opened(golden, golden.tensors(**{suffix: damaged}))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


SLOW = r"re:(?:.|..|...)*0$"
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def groups(targets: object = ("Linear",), **weights: Any) -> dict[str, Any]:
    targets = list(targets) if isinstance(targets, tuple) else targets
    return {"config_groups": {"group_0": {"targets": targets, "weights": {**WEIGHTS, **weights}}}}


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
        ("autoawq-g32", {"version": "gemv_fast"}, "version must be gemm or exllama or gemv, got 'gemv_fast'"),
        ("autoawq-g32", {"version": "marlin"}, "version must be gemm or exllama or gemv, got 'marlin'"),
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
        ("modelopt-fp8", {"quant_algo": "W4A8_AWQ"}, "quant_algo must be FP8 or NVFP4, got 'W4A8_AWQ'"),
        ("modelopt-fp8", {"quant_algo": "MIXED_PRECISION"}, "quant_algo must be FP8 or NVFP4"),
        ("modelopt-fp8", {"quant_algo": "NVFP4"}, "says modelopt, but no tensor ends in .weight_scale_2"),
        ("compressed_tensors-w4_group", {"config_groups": {}}, "config_groups must describe at least one group"),
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
        ("compressed_tensors-fp8_block", groups(num_bits=8, type="float", strategy="block"), "block_structure must be"),
        ("auto_gptq-4bit_act", {"quant_method": None}, "quant_method is missing"),
        ("auto_gptq-4bit_act", {"quant_method": 5}, "quant_method must be a string"),
        *(
            ("auto_gptq-4bit_act", {"quant_method": each}, f"quant_method must be one of .*, got '{each}'")
            for each in ("exl2", "exl3", "quip", "aqlm", "marlin", "quark", "vptq", "bitnet")
        ),
        (
            "auto_round-4bit_plain",
            {"packing_format": "auto_round:llm_compressor"},
            "packing_format must be that of GPTQ",
        ),
        ("auto_round-4bit_plain", {"packing_format": 4}, "packing_format must be a string"),
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


@pytest.mark.parametrize(
    "suffix", [".qweight", ".weight_packed", ".W_q", ".SCB", STATE, ".q_weight", ".trellis", "._weight_qdata"]
)
def test_quantised_tensors_without_a_configuration_are_refused(suffix: str) -> None:
    tensors = Arrays({f"{MODULE}{suffix}": np.zeros((4, 4), np.int32)})
    with pytest.raises(
        CheckpointError, match=rf"{MODULE}{suffix}' is quantised, but config.json lacks a quantization_"
    ):
        with_weights(Config({}, "config.json"), tensors)


def test_a_module_that_has_its_weight_twice_is_refused() -> None:
    golden = GOLDENS["auto_gptq-4bit_act"]
    tensors = golden.tensors()
    tensors.arrays[WEIGHT] = golden.dense
    with pytest.raises(CheckpointError, match=rf"tensor '{WEIGHT}' is beside a quantised matrix"):
        opened(golden, tensors)


def test_a_module_of_two_quantisations_is_refused() -> None:
    golden = GOLDENS["bitsandbytes-nf4"]
    tensors = golden.tensors()
    other = STATE.replace("nf4", "fp4")
    tensors.arrays[f"{MODULE}{other}"] = golden.parts[STATE]
    with pytest.raises(CheckpointError, match=rf"{other}' is beside .*{STATE}, must be alone"):
        opened(golden, tensors)


def test_weights_in_the_order_of_eetq_s_kernel_are_refused() -> None:
    """Its library adds 128 to each. The numbers of a matrix in order lie around 0."""
    codes = np.clip(np.random.default_rng(0).normal(0, 30, (96, 32)).round(), -127, 127).astype(np.int8)
    parts = {f"{MODULE}.weight": codes, f"{MODULE}.weight_scales": np.full(32, 0.01, np.float16)}
    config = Config({"quantization_config": {"quant_method": "eetq"}}, "config.json")
    found = with_weights(config, Arrays(parts))
    np.testing.assert_array_equal(found.read(WEIGHT, (32, 96), ()), codes.T * np.float32(np.float16(0.01)))
    shifted = parts | {f"{MODULE}.weight": (codes.view(np.uint8) + np.uint8(128)).view(np.int8)}
    with pytest.raises(CheckpointError, match=r"weight' is in the order of a GPU's kernel: serve the original"):
        with_weights(config, Arrays(shifted))


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
