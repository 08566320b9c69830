"""GGUF files: our own bounded parser of the header. What a tensor holds is `gguf_tensor`'s to read.

Past vulnerabilities of GGUF readers were all unchecked counts, lengths and offsets. Here each of them is compared with
the file's size and a limit before it is used. Nothing here knows a model.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import re
import struct
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from convert.errors import CheckpointError
from convert.formats.gguf_tensor import GgufTensor
from convert.formats.memory_map import memory_map
from convert.formats.tensors import MAX_TENSORS, NAME_PATTERN

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 65_536
MAX_METADATA = 64 * 2**20
MAX_DIMS = 4
MAX_ALIGNMENT = 4096
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4"),
)


class GgufFile:
    """Metadata and tensors of one file, checked on construction and mapped read-only.

    Raises:
        CheckpointError: the file is cut, malformed, big-endian or holds a block type we do not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        cursor = _Cursor(memory_map(path), path.name)
        tensor_count, key_count = _counts(cursor)
        self.metadata = _metadata(cursor, key_count)
        self.tensors = _tensors(cursor, tensor_count, _alignment(self.metadata, path.name))


class _Cursor:
    """A position in the header; every step is checked against the file's end and the metadata limit."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self.data, self.where, self.position = data, where, 0
        self.limit = min(len(data), MAX_METADATA)

    def take(self, size: int) -> bytes:
        if size > self.limit - self.position:
            raise self.error(
                f"header needs {size} bytes at {self.position}, only {self.limit - self.position} possible"
            )
        self.position += size
        return self.data[self.position - size : self.position]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        try:
            return self.take(self.scalar("Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"string before byte {self.position} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        return self.scalar(self._code(kind))

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == STRING:
            if count > (self.limit - self.position) // 8:
                raise self.error(f"array of {count} strings does not fit the file")
            return [self.string() for _ in range(count)]
        code = self._code(kind)
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code))))

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {problem}; truncated or not a GGUF file")

    def _code(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self.error(f"unknown value type {kind} at byte {self.position}")
        return SCALARS[kind]


def _counts(cursor: _Cursor) -> tuple[int, int]:
    if cursor.take(4) != MAGIC:
        raise cursor.error("does not start with GGUF")
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise CheckpointError(f"{cursor.where}: GGUF version {version:#x}, supported are 2 and 3, little-endian")
    tensors, keys = cursor.scalar("Q"), cursor.scalar("Q")
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        raise cursor.error(f"{tensors} tensors and {keys} keys, at most {MAX_TENSORS} and {MAX_KEYS}")
    return tensors, keys


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in metadata:
            raise cursor.error(f"key {key[:80]!r} appears twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    return metadata


def _alignment(metadata: dict[str, Any], where: str) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise CheckpointError(f"{where}: alignment must be a power of two up to {MAX_ALIGNMENT}, got {alignment!r}")
    return alignment


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    described = [_describe(cursor) for _ in range(count)]
    data = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in described:
        if name in tensors:
            raise cursor.error(f"tensor {name!r} appears twice")
        tensors[name] = GgufTensor(name, kind, shape, data + offset, cursor.data, cursor.where)
    _check_ranges(tensors, len(cursor.data), cursor.where)
    return tensors


def _describe(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name, dims = cursor.string(), cursor.scalar("I")
    if not re.fullmatch(NAME_PATTERN, name) or not 1 <= dims <= MAX_DIMS:
        raise cursor.error(f"tensor {name[:80]!r} of {dims} dimensions is not allowed")
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(dims)]))
    code, offset = cursor.scalar("I"), cursor.scalar("Q")
    known = {kind.value: kind for kind in GGMLQuantizationType}
    kind = known.get(code)
    if kind is None or kind.name not in TYPES:
        shown = kind.name if kind else code
        raise CheckpointError(f"{cursor.where}: tensor {name!r} has type {shown}, supported are {', '.join(TYPES)}")
    block = GGML_QUANT_SIZES[kind][0]
    if not all(shape) or shape[-1] % block:
        raise cursor.error(f"tensor {name!r} of shape {shape} does not divide into blocks of {block}")
    return name, shape, kind, offset


def _check_ranges(tensors: dict[str, GgufTensor], file_size: int, where: str) -> None:
    position, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.end > file_size:
            raise CheckpointError(
                f"{where}: tensor {name!r} ends at byte {tensor.end}, the file at {file_size}: truncated"
            )
        if tensor.start < position:
            raise CheckpointError(f"{where}: tensors {before!r} and {name!r} overlap")
        position, before = tensor.end, name
