"""Tensors as the protocol carries them: numbers and byte strings, as JSON or as raw bytes.

Raw numbers are little-endian, in row-major order; a raw BYTES element is its length as u32 and then the bytes (Triton,
docs/protocol/extension_binary_data.md).
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.errors import RequestError
from gateway.http.encoding import json_list, json_text, short_float

BYTES = "BYTES"
BF16 = "BF16"  # numpy has none: read as the upper half of a float32
NUMPY = {
    "BOOL": "?",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
DATATYPES = (*NUMPY, BF16, BYTES)
WHOLE = tuple(name for name in NUMPY if "INT" in name)
FLOATS = ("FP16", BF16, "FP32", "FP64")
RAW_ONLY = ("FP16", BF16)  # they have no form in JSON
MAX_NAME = 128  # characters
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 1 << 16  # of BYTES, of which no input takes more than 2,048: each takes 0.1 us of the event loop to read
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Tensor:
    """values: flat, in row-major order; of BYTES an object array of `bytes`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: "np.ndarray[Any, Any]"

    @classmethod
    def of(cls, name: str, datatype: str, values: Any, shape: tuple[int, ...] | None = None) -> "Tensor":
        """One of our own: a vector unless it has another `shape`. Texts become BYTES."""
        if datatype == BYTES:
            array = _objects([each.encode() for each in values])
        else:
            array = np.ascontiguousarray(values, NUMPY[datatype]).reshape(-1)
        return cls(name, datatype, (len(array),) if shape is None else shape, array)

    @classmethod
    def from_raw(cls, name: str, datatype: str, shape: tuple[int, ...], raw: bytes) -> "Tensor":
        """Raises RequestError if `raw` is not a tensor of this type and shape."""
        count = elements(name, datatype, shape)
        if datatype == BYTES:
            return cls(name, datatype, shape, _objects(_strings(name, raw, count)))
        dtype = np.dtype("<u2" if datatype == BF16 else NUMPY[datatype])
        if len(raw) != count * dtype.itemsize:
            expected = f"{count * dtype.itemsize} bytes for shape {list(shape)} of {datatype}"
            raise _wrong(name, f"has {len(raw)} bytes, expected {expected}")
        values = np.frombuffer(raw, dtype)
        return cls(name, datatype, shape, _widened(values) if datatype == BF16 else values)

    @classmethod
    def from_json(cls, name: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> "Tensor":
        """Raises RequestError if `data`, flat or nested, is not a tensor of this type and shape."""
        count = elements(name, datatype, shape)
        if datatype in RAW_ONLY:
            raise _wrong(name, f"is {datatype}, which has no form in JSON: send it as binary data")
        given = list(_flat(data))
        if datatype == BYTES and count == 1 and given and all(type(each) is int and 0 <= each < 256 for each in given):
            given = [bytes(given)]  # as TGI's KServe clients spell a text
        if len(given) != count:
            raise _wrong(name, f"has {len(given)} values, expected {count} for shape {list(shape)}")
        return cls(name, datatype, shape, _from_values(name, datatype, given))

    def raw(self) -> bytes:
        if self.datatype == BYTES:
            return b"".join(part for each in self.values for part in (_LENGTH.pack(len(each)), each))
        return self.values.tobytes()

    def json(self) -> Iterator[str]:
        """Every value as JSON. Raises RequestError for a float that JSON cannot express."""
        if self.datatype == BYTES:
            return (json_text(each.decode(errors="replace")) for each in self.values)
        if self.datatype == "BOOL":
            return ("true" if each else "false" for each in self.values)
        if self.datatype not in FLOATS:
            return map(str, self.values.tolist())
        if not np.isfinite(self.values).all():
            raise _wrong(self.name, "holds NaN or infinity, which JSON does not know: ask for binary data")
        return (repr(short_float(each)) for each in self.values.tolist())

    def json_data(self) -> str:
        """The values as a flat JSON list."""
        return json_list(self.json())


def elements(name: str, datatype: str, shape: tuple[int, ...]) -> int:
    """How many values a tensor has. Raises RequestError if there are no such tensors."""
    if len(name) > MAX_NAME:
        raise RequestError.invalid(f"the name of an input has {len(name)} characters, at most {MAX_NAME}")
    if datatype not in DATATYPES:
        raise RequestError.invalid(f"input '{name}': the datatype must be one of {', '.join(DATATYPES)}", name)
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        limit = f"at most {MAX_DIMENSIONS} sizes of at least 0"
        raise RequestError.invalid(f"input '{name}': the shape must have {limit}", name)
    count = math.prod(shape)  # of Python's integers, which do not overflow
    if datatype == BYTES and count > MAX_ELEMENTS:
        raise RequestError.invalid(f"input '{name}' has more than {MAX_ELEMENTS} elements of BYTES", name)
    return count


def _wrong(name: str, what: str) -> RequestError:
    return RequestError.invalid(f"tensor '{name}' {what}", name)


def _objects(values: list[bytes]) -> "np.ndarray[Any, Any]":
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _widened(halves: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """bfloat16 as float32: u16 [n] → f32 [n]."""
    return (halves.astype("<u4") << 16).view("<f4")


def _strings(name: str, raw: bytes, count: int) -> list[bytes]:
    """The `count` elements of raw BYTES. Raises RequestError if there are not exactly so many."""
    found: list[bytes] = []
    at = 0
    while at < len(raw) and len(found) < count:
        end = at + _LENGTH.size
        if end <= len(raw):
            end += _LENGTH.unpack_from(raw, at)[0]
        if end > len(raw):
            raise _wrong(name, f"is cut: its element {len(found)} ends behind its {len(raw)} bytes")
        found.append(raw[at + _LENGTH.size : end])
        at = end
    if len(found) != count or at != len(raw):
        raise _wrong(name, f"has {'more than ' if at != len(raw) else ''}{len(found)} elements, expected {count}")
    return found


def _flat(data: Any) -> Iterator[Any]:
    """Values of nested lists in row-major order. Their depth is bounded, see `strict_json`."""
    if not isinstance(data, list):
        yield data
        return
    for each in data:
        yield from _flat(each)


def _from_values(name: str, datatype: str, given: list[Any]) -> "np.ndarray[Any, Any]":
    taken: tuple[type, ...] = (int,) if datatype in WHOLE else (int, float)
    taken = {BYTES: (str, bytes), "BOOL": (bool,)}.get(datatype, taken)
    if not all(type(each) in taken for each in given):
        raise _wrong(name, f"holds a value that is not {datatype}")
    if datatype == BYTES:
        return _objects([each.encode() if isinstance(each, str) else each for each in given])
    try:
        with np.errstate(over="raise"):
            return np.array(given, NUMPY[datatype])
    except (OverflowError, FloatingPointError):
        raise _wrong(name, f"holds a number that is too large for {datatype}") from None
