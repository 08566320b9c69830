"""safetensors files: our own bounded header parser and memory-mapped reads.

The parser trusts nothing. Header size, tensor count, names, dimensions and offsets are checked in Python integers
before a byte of data is mapped, and the data must cover the file exactly, so a truncated or overlapping file is refused
at once. Flipped data bits are not detected here, but by a manifest's sha256 (`convert/checkpoint.py`).
Layout: https://huggingface.co/docs/safetensors — u64 header length, JSON header, data.
"""

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from convert.errors import CheckpointError
from convert.formats import lfs_pointer
from convert.formats.memory_map import memory_map
from convert.formats.tensors import MAX_DIMS, MAX_TENSORS, NAME_PATTERN, Index, Tensors

MAX_HEADER = 16 * 2**20
PREFIX = 8  # bytes that tell the header's length
SINGLE_FILE = "model.safetensors"

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class Entry:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    end: int


class SafetensorsFile(Tensors):
    """One file, checked on construction and mapped read-only, or copied.

    Args:
        called: how messages name it: by its name alone unless told.

    Raises:
        CheckpointError: the file is missing, cut, overlapping or malformed; the message names file and tensor.
    """

    def __init__(self, path: Path, *, copied: bool = False, called: str = "") -> None:
        self.path = path
        self._called = called or path.name
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                self._entries = read_header(file.read(PREFIX), file.read(MAX_HEADER), size, self._called)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        self._data = memory_map(path, copied=copied)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        return self._entries[name].dtype.name

    def where(self, name: str) -> str:
        return self._called

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        entry = self._entries[name]
        flat = np.frombuffer(self._data, np.uint8, entry.end - entry.start, entry.start).view(entry.dtype)
        return flat.reshape(view)[index]


def encode_header(tensors: dict[str, tuple[str, tuple[int, ...]]], made_by: str = "flax") -> bytes:
    """The length and JSON header of a file that holds `name: (dtype name, shape)` in this order, padded to 64 bytes.

    `made_by` is the library that transformers takes the tensors to be of.
    """
    codes = {dtype.name: code for code, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": made_by}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * DTYPES[codes[dtype]].itemsize
        header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return struct.pack("<Q", len(text)) + text


def header_bytes(prefix: bytes, file_size: int, where: str) -> int:
    """The length of a file's header, by the `PREFIX` bytes in front of it. Raises CheckpointError."""
    if len(prefix) < PREFIX:
        raise CheckpointError(f"{where}: {file_size} bytes is too short for a safetensors file")
    if prefix == lfs_pointer.START[:PREFIX]:  # as a length it would be beyond any file's
        raise CheckpointError(f"{where}: {lfs_pointer.PROBLEM}")
    length: int = struct.unpack("<Q", prefix)[0]
    if length > MAX_HEADER or PREFIX + length > file_size:
        limit = min(MAX_HEADER, file_size - PREFIX)
        raise CheckpointError(
            f"{where}: header of {length} bytes, at most {limit} possible; truncated or not safetensors"
        )
    return length


def read_header(prefix: bytes, body: bytes, file_size: int, where: str) -> dict[str, Entry]:
    """The tensors of a file: `prefix` and `body`, which may go on behind the header, are its start.

    Raises:
        CheckpointError: it is malformed, or its tensors do not cover the file.
    """
    length = header_bytes(prefix, file_size, where)
    try:
        header = json.loads(body[:length].decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{where}: header must be a JSON object, got {type(header).__name__}")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise CheckpointError(f"{where}: {len(header)} tensors, at most {MAX_TENSORS}")
    entries = {name: _entry(name, fields, PREFIX + length, where) for name, fields in header.items()}
    _check_coverage(entries, PREFIX + length, file_size, where)
    return entries


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"key {twice[:80]!r} appears twice")
    return keys


def _entry(name: str, fields: Any, data: int, where: str) -> Entry:
    if not re.fullmatch(NAME_PATTERN, name):
        raise CheckpointError(f"{where}: tensor name {name[:80]!r} is not allowed")
    try:
        shape, (start, end), dtype = tuple(fields["shape"]), fields["data_offsets"], DTYPES[fields["dtype"]]
        sizes = (*shape, start, end)
        valid = len(shape) <= MAX_DIMS and all(type(size) is int and 0 <= size < 2**63 for size in sizes)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: tensor {name!r} is badly described: {type(error).__name__} {error}") from error
    if not valid:
        raise CheckpointError(f"{where}: tensor {name!r}: shape {shape} or offsets [{start}, {end}] out of range")
    expected = math.prod(shape) * dtype.itemsize
    if end - start != expected:
        raise CheckpointError(f"{where}: tensor {name!r} of shape {shape} takes {expected} bytes, has {end - start}")
    return Entry(dtype, shape, data + start, data + end)


def _check_coverage(entries: dict[str, Entry], data: int, file_size: int, where: str) -> None:
    """Tensors follow one another without gap or overlap up to the end of the file."""
    position = data
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.end > file_size:
            raise CheckpointError(
                f"{where}: tensor {name!r} ends at byte {entry.end}, the file at {file_size}: truncated"
            )
        if entry.start != position:
            raise CheckpointError(f"{where}: tensor {name!r} starts at byte {entry.start}, expected {position}")
        position = entry.end
    if position != file_size:
        raise CheckpointError(f"{where}: {file_size - position} bytes after the last tensor")
