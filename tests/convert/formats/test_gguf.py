"""GGUF: a file with a wrong header is refused."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from convert.errors import CheckpointError
from convert.formats.gguf import GgufFile
from tests.convert.tiny_gguf import write_tiny_gguf


def test_a_block_type_we_do_not_read_is_named(tmp_path: Path) -> None:
    raw = np.zeros((3, 292), np.uint8)
    with pytest.raises(CheckpointError, match=r"tensor 'x' has type Q8_K, supported are F32, "):
        open_single(tmp_path, raw, gguf.GGMLQuantizationType.Q8_K)


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


def open_single(directory: Path, raw: np.ndarray, kind: gguf.GGMLQuantizationType) -> GgufFile:
    """Write one tensor with the reference writer, and open the file."""
    path = directory / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)
