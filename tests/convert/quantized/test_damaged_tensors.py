"""A quantised checkpoint with a damaged tensor is refused in one line that names it, before a weight is read; a weight
that is not a number is refused when it is read.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.quantized.tensors import with_weights
from tests.convert.quantized.goldens import CASES, CODES, GOLDENS, MODULE, STATE, WEIGHT, Arrays, Golden, opened

OTHER_WEIGHTS = (*CODES, ".qzeros", ".weight_zero_point", ".weight.absmax")  # whose every value is a valid one
WHOLE_ZEROS = "._weight_zero_point"  # each of which is valid, and which torchao 0.16 had none of
HARMLESS = {(WHOLE_ZEROS, kind) for kind in ("missing", "another value")}


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


NESTED_TABLE = ".weight.nested_quant_map"
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
        ("compressed_tensors-nvfp4", ".weight_global_scale", lambda a: a * 0, "must be positive, .* is 0.0"),
        (
            "compressed_tensors-nvfp4",
            ".weight_global_scale",
            lambda a: a * 0 + 1e-37,
            "must be positive, .* finite; is 9.9",
        ),
        (
            "compressed_tensors-nvfp4",
            ".weight_scale",
            lambda a: (a * np.nan).astype(a.dtype),
            "has a scale that is not finite",
        ),
        ("compressed_tensors-mxfp4", ".weight_scale", lambda a: a | 255, "has a scale that is not a number"),
        ("compressed_tensors-mxfp8", ".weight_scale", lambda a: a | 255, "has a scale that is not a number"),
        ("compressed_tensors-mxfp8", ".weight_scale", lambda a: a[:, :2], r"shape \[16, 2\], must have \[16, 3\]"),
        ("modelopt-mxfp8", ".weight", lambda a: a[:, :90], "has 90 inputs, which groups of 32 do not divide"),
        ("modelopt-nvfp4", ".weight_scale_2", lambda a: -a, "weight_scale_2' must be positive"),
        ("modelopt-nvfp4", ".weight_scale_2", lambda a: a * 0 + 1e36, "must be positive, and scales with it finite"),
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
        ("torchao-int8_rows", "._weight_scale", lambda a: a[:, :0], r"has shape \[24, 0\], must have one entry, 24 r"),
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


def test_scales_that_are_finite_and_whose_product_is_not_are_refused() -> None:
    golden = GOLDENS["bitsandbytes-nf4_double"]
    large = {suffix: golden.parts[suffix] + np.float32(1e30) for suffix in (".weight.nested_absmax", NESTED_TABLE)}
    with pytest.raises(CheckpointError, match="nested_absmax' makes a scale that is not finite"):
        opened(golden, golden.tensors(**large))


@pytest.mark.parametrize("octet", [0x7F, 0xFF])
@pytest.mark.parametrize(
    ("case", "suffix"),
    [
        *((f"compressed_tensors-fp8_{each}", ".weight") for each in ("tensor", "channel", "group", "block_ragged")),
        *(("modelopt-fp8", ".weight"), ("transformers-fp8_block", ".weight"), ("torchao-fp8_rows", "._weight_qdata")),
    ],
)
def test_a_weight_of_8_bits_that_is_not_a_number_is_refused_where_it_is_read(
    case: str, suffix: str, octet: int
) -> None:
    golden = GOLDENS[case]
    damaged = golden.parts[suffix].copy()
    damaged.view(np.uint8)[5, 9] = octet
    found = opened(golden, golden.tensors(**{suffix: damaged}))
    matrix = found.quantized(WEIGHT)
    assert matrix is not None
    for beside in ((slice(0, 5), slice(None)), (slice(6, None), slice(None)), (slice(None), slice(0, 9))):
        assert np.isfinite(found.read(WEIGHT, matrix.shape, beside)).all()
    for around in ((slice(None), slice(None)), (slice(5, 6), slice(9, 10))):
        for read in (found.read, lambda _, view, index: matrix.component("values", view, index)):
            with pytest.raises(CheckpointError, match=f"{MODULE}{suffix}' has a value that is not a number"):
                read(WEIGHT, matrix.shape, around)


EETQ = {
    ".weight": np.random.default_rng(0).integers(-60, 60, (96, 32), np.int8),
    ".weight_scales": np.full(32, 0.01, np.float16),
}


@pytest.mark.parametrize("suffix", EETQ)
def test_damaged_weights_of_eetq_are_refused(suffix: str) -> None:
    """It has no golden. Fewer or more rows are a matrix of another shape, which the configuration refuses."""
    golden = Golden("eetq", "", {"quant_method": "eetq"})
    for kind, damaged in damages(EETQ[suffix]):
        if kind == "another value" and suffix == ".weight":
            continue
        parts = {f"{MODULE}{name}": each for name, each in (EETQ | {suffix: damaged}).items() if each is not None}
        try:
            found = opened(golden, Arrays(parts))
        except CheckpointError as error:
            assert MODULE in str(error) or "no tensor ends in" in str(error)
            continue
        assert found.shape(WEIGHT) != (32, 96), kind
