"""GGUF: every block type gives the values its layout says, and a file with a wrong header is refused."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from convert.errors import CheckpointError
from convert.formats.gguf import TYPES, GgufFile
from tests.convert.formats.blocks import DEQUANTISE
from tests.convert.tiny_gguf import write_tiny_gguf

ROWS, BLOCKS = 3, 2


@pytest.mark.parametrize("kind", sorted(DEQUANTISE))
def test_block_values_follow_the_layout(kind: str, tmp_path: Path) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    raw = random_blocks(quantisation)
    values = read_single(tmp_path, raw, quantisation)
    block_bytes = gguf.GGML_QUANT_SIZES[quantisation][1]
    expected = [[v for b in row.reshape(-1, block_bytes) for v in DEQUANTISE[kind](b.tobytes())] for row in raw]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values, gguf.quants.dequantize(raw, quantisation))


def test_every_type_that_is_read_has_a_reference() -> None:
    assert set(TYPES) == set(DEQUANTISE) | {"F32", "F16", "BF16"}


@pytest.mark.parametrize(("kind", "dtype"), [("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)])
def test_plain_types_keep_their_values(kind: str, dtype: type, tmp_path: Path) -> None:
    exact = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(dtype)
    raw = exact if kind != "BF16" else exact.view(np.uint8)
    values = read_single(tmp_path, raw, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(values, exact.astype(np.float32))


def test_a_block_type_we_do_not_read_is_named(tmp_path: Path) -> None:
    raw = np.zeros((ROWS, 292), np.uint8)
    with pytest.raises(CheckpointError, match=r"tensor 'x' has type Q8_K, supported are F32, "):
        read_single(tmp_path, raw, gguf.GGMLQuantizationType.Q8_K)


@pytest.mark.parametrize("fraction", [0.0, 0.0001, 0.01, 0.2, 0.5, 0.99])
def test_a_truncated_file_is_refused(fraction: float, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    data = write_tiny_gguf(tiny("llama"), tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(CheckpointError, match=r"truncated|cannot be read"):
        GgufFile(cut)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"GGML" + struct.pack("<IQQ", 3, 0, 0), "does not start with GGUF"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 0x3000000"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 0x1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "at most 100000"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "at most 100000 and 65536"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62), "header needs 4611686018427387904 bytes"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**60),
            "array of 1152921504606846976",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 9, 1), "unknown value type 9"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<II", 4, 1), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<I", 9), "of 9 dimensions"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<IQIQ", 1, 31, 2, 0), "does not divide"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<IQIQ", 1, 2**62, 0, 0), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<IQIQ", 1, 8, 0, 2**62), "truncated"),
    ],
)
def test_a_wrong_header_is_refused(header: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header + bytes(64))
    with pytest.raises(CheckpointError, match=message):
        GgufFile(path)


def test_mutated_headers_only_ever_raise_checkpoint_errors(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    data = write_tiny_gguf(tiny("llama"), tmp_path / "whole.gguf").read_bytes()
    drawn, path = random.Random(0), tmp_path / "mutant.gguf"
    for _ in range(150):
        mutant = bytearray(data)
        for _ in range(drawn.randint(1, 4)):
            mutant[drawn.randrange(12_000)] = drawn.randrange(256)
        path.write_bytes(mutant)
        try:
            GgufFile(path)
        except CheckpointError as error:
            assert "\n" not in str(error)


def random_blocks(kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Random bytes of which every pair is a finite f16, so that each pair may be a scale."""
    size = gguf.GGML_QUANT_SIZES[kind][1] * BLOCKS
    raw = np.random.default_rng(1).integers(0, 256, (ROWS, size), np.uint8)
    return np.where((raw & 0x7C) == 0x7C, raw & 0xBF, raw).astype(np.uint8)


def read_single(directory: Path, raw: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Write one tensor with the reference writer, and read all its rows."""
    path = directory / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path).rows("x", np.arange(len(raw)))
