"""A tensor of a GGUF file: in floats as the `gguf` library has it, by any slice, and as the blocks it is stored in."""

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from convert.errors import CheckpointError
from convert.formats.gguf import TYPES, GgufFile
from convert.formats.gguf_blocks import BLOCK_TYPES
from convert.formats.gguf_tensor import FLOATS, GgufTensor
from convert.formats.quantized_matrix import QuantizedMatrix
from jaxengine.architecture.weight_format import Component
from tests.convert.formats.blocks import DEQUANTISE

ROWS, BLOCKS = 5, 3
IN_FLOATS = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0"}
FOUR_BITS = {"Q4_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4"}
MINIMA = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q4_K": (0, 2), "Q5_K": (0, 2)}  # where the two f16 lie
SCALE = {**dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), 0), "Q3_K": 108, "Q6_K": 208, "TQ2_0": 64}
NOT_FINITE = {"infinity": b"\x00\x7c", "not a number": b"\x01\xfe"}


@pytest.mark.parametrize("kind", sorted(DEQUANTISE))
def test_floats_follow_the_layout_and_are_the_library_s(kind: str, tmp_path: Path) -> None:
    raw = random_blocks(kind)
    expected = [[v for b in row.reshape(BLOCKS, -1) for v in DEQUANTISE[kind](b.tobytes())] for row in raw]
    values = tensor(tmp_path, raw, kind).whole()
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values, by_library(raw, kind))


def test_every_type_that_is_read_has_a_reference() -> None:
    assert set(TYPES) == set(DEQUANTISE) | set(FLOATS)


@pytest.mark.parametrize(("kind", "dtype"), [("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)])
def test_plain_types_keep_their_values_and_are_not_quantised(kind: str, dtype: type, tmp_path: Path) -> None:
    exact = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(dtype)
    found = tensor(tmp_path, exact if kind != "BF16" else exact.view(np.uint8), kind)
    np.testing.assert_array_equal(found.whole(), exact.astype(np.float32))
    np.testing.assert_array_equal(found.read(slice(1, 4), slice(3, 7)), exact.astype(np.float32)[1:4, 3:7])
    assert found.quantized() is None and not found.in_blocks


@pytest.mark.parametrize("kind", sorted(DEQUANTISE))
def test_a_slice_equals_the_whole_s(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns begin and end inside of blocks, and rows are read in several chunks."""
    raw = random_blocks(kind)
    found, whole, size = tensor(tmp_path, raw, kind), by_library(raw, kind), gguf.GGML_QUANT_SIZES[code(kind)][0]
    for chunk in (1, 2 * size, 2**18):
        monkeypatch.setattr("convert.formats.gguf_tensor.CHUNK", chunk)
        for rows in (slice(0, ROWS), slice(1, 4), slice(4, 5)):
            for columns in (slice(0, size), slice(size, 3 * size), slice(5, 7), slice(size - 1, 2 * size + 9)):
                np.testing.assert_array_equal(found.read(rows, columns), whole[rows, columns])


@pytest.mark.parametrize("kind", sorted(BLOCK_TYPES))
def test_a_matrix_kept_in_blocks_is_the_one_in_floats(kind: str, tmp_path: Path) -> None:
    raw = random_blocks(kind)
    matrix = quantized(tensor(tmp_path, raw, kind))
    assert matrix.format.name == "gguf"
    assert matrix.format.bits == (4 if kind in FOUR_BITS else 8)
    assert_restores(matrix, by_library(raw, kind))


def test_types_of_vectors_are_read_in_floats_alone(tmp_path: Path) -> None:
    assert set(BLOCK_TYPES) | IN_FLOATS == set(DEQUANTISE)
    for kind in IN_FLOATS:
        found = tensor(tmp_path, random_blocks(kind), kind)
        assert found.quantized() is None and found.in_blocks


@pytest.mark.parametrize("kind", sorted(BLOCK_TYPES))
def test_components_are_read_by_any_slice(kind: str, tmp_path: Path) -> None:
    matrix = quantized(tensor(tmp_path, random_blocks(kind), kind))
    for component, dtype in matrix.format.dtypes.items():
        width = matrix.shape[-1] // (1 if component == "values" else matrix.format.group)
        whole = matrix.read(component, slice(0, ROWS), slice(0, width))
        assert whole.shape == (ROWS, width) and whole.dtype == dtype
        for columns in (slice(1, 2), slice(width // 3, width), slice(1, width - 1)):
            np.testing.assert_array_equal(matrix.read(component, slice(2, 4), columns), whole[2:4, columns])


def test_values_of_four_bits_fit_four_bits(tmp_path: Path) -> None:
    for kind in FOUR_BITS:
        matrix = quantized(tensor(tmp_path, random_blocks(kind), kind))
        codes = read(matrix, "values").astype(int) + matrix.format.offset
        assert codes.min() >= 0 and codes.max() <= 15, kind


@pytest.mark.parametrize("kind", sorted(MINIMA))
@pytest.mark.parametrize("scale", [0.0, 6e-8, 2.0**-10])
def test_a_group_whose_scale_is_nothing_beside_its_minimum_keeps_the_minimum(
    kind: str, scale: float, tmp_path: Path
) -> None:
    """Neither dividing by 0 nor a zero point beyond what 16 bits hold. 2 ** -10 is a scale like others."""
    raw = random_blocks(kind)
    of_scale, of_minimum = MINIMA[kind]
    blocks = raw.reshape(ROWS * BLOCKS, -1)
    blocks[:, of_scale : of_scale + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    blocks[:, of_minimum : of_minimum + 2] = np.frombuffer(np.float16(60000).tobytes(), np.uint8)
    matrix = quantized(tensor(tmp_path, raw, kind))
    assert_restores(matrix, by_library(raw, kind))
    if not scale:
        assert (read(matrix, "scales") == 1).all() and np.abs(read(matrix, "values")).max() == 0


@pytest.mark.parametrize("kind", [*sorted(SCALE), "MXFP4"])
def test_a_scale_that_is_not_finite_is_refused_by_the_tensor_s_name(kind: str, tmp_path: Path) -> None:
    for at, octets in [(0, b"\xff")] if kind == "MXFP4" else [(SCALE[kind], each) for each in NOT_FINITE.values()]:
        raw = random_blocks(kind)
        raw.reshape(ROWS * BLOCKS, -1)[7, at : at + len(octets)] = np.frombuffer(octets, np.uint8)
        with pytest.raises(CheckpointError, match=r"one\.gguf: tensor 'x' has a scale .* not a finite number"):
            tensor(tmp_path, raw, kind).whole()
        if kind in BLOCK_TYPES:
            with pytest.raises(CheckpointError, match="not a finite number"):
                read(quantized(tensor(tmp_path, raw, kind)), "scales")


@pytest.mark.parametrize("kind", sorted(MINIMA))
def test_a_minimum_that_is_not_finite_is_refused(kind: str, tmp_path: Path) -> None:
    raw, at = random_blocks(kind), MINIMA[kind][1]
    raw.reshape(ROWS * BLOCKS, -1)[7, at : at + 2] = (0, 0x7C)
    with pytest.raises(CheckpointError, match="not a finite number"):
        tensor(tmp_path, raw, kind).whole()


def random_blocks(kind: str) -> np.ndarray:
    """Random bytes of which every pair is a finite f16, so that each pair may be a scale."""
    size = gguf.GGML_QUANT_SIZES[code(kind)][1] * BLOCKS
    raw = np.random.default_rng(1).integers(0, 256, (ROWS, size), np.uint8)
    return np.where((raw & 0x7C) == 0x7C, raw & 0xBF, raw).astype(np.uint8)


def code(kind: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind]


def by_library(raw: np.ndarray, kind: str) -> np.ndarray:
    values: np.ndarray = gguf.quants.dequantize(raw, code(kind))
    return values


def tensor(directory: Path, raw: np.ndarray, kind: str) -> GgufTensor:
    """Tensor `x` of a file that the reference writer made."""
    path = directory / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", raw, raw_dtype=code(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path).tensors["x"]


def quantized(tensor: GgufTensor) -> QuantizedMatrix:
    matrix = tensor.quantized()
    assert matrix is not None
    return matrix


def read(matrix: QuantizedMatrix, component: Component) -> np.ndarray:
    width = matrix.shape[-1] // (1 if component == "values" else matrix.format.group)
    return matrix.read(component, slice(0, ROWS), slice(0, width))


def assert_restores(matrix: QuantizedMatrix, expected: np.ndarray) -> None:
    """To the rounding of f32, beside the largest number that the weight is computed of."""
    values = read(matrix, "values")
    numbers = np.asarray(matrix.format.table)[values] if matrix.format.table else values
    groups = numbers.astype(np.float32).reshape(ROWS, -1, matrix.format.group)
    zeros = read(matrix, "zeros")[..., None] if matrix.format.zeros else np.zeros(1, np.float32)
    scales = read(matrix, "scales").astype(np.float32)[..., None]
    restored = ((groups - zeros) * scales).reshape(expected.shape)
    terms = np.maximum(np.abs(groups), np.abs(zeros)) * np.abs(scales)
    assert np.isfinite(restored).all()
    assert (np.abs(restored - expected) <= 2.0**-22 * terms.reshape(expected.shape)).all()
    if not matrix.format.zeros:
        np.testing.assert_array_equal(restored, expected)
