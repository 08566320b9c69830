"""What a checkpoint format offers: named arrays that are read lazily, by slice.

A format knows bytes, not models. It checks its own file before the first read and refuses what lies outside it.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from convert.formats.quantized_matrix import Index as Index  # of a read: whoever implements `Tensors` needs both
from convert.formats.quantized_matrix import QuantizedMatrix

MAX_TENSORS = 100_000
MAX_DIMS = 8
NAME_PATTERN = r"[A-Za-z0-9_.\-/]{1,512}"


class Tensors(Protocol):
    """Every tensor of one checkpoint. Reads come from several threads at once."""

    def __contains__(self, name: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str:
        """The stored element type, e.g. "bfloat16"."""
        ...

    def where(self, name: str) -> str:
        """The file that holds `name`, for error messages."""
        ...

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        """`tensor.reshape(view)[index]` without reading the rest. May be a read-only view of the mapped file."""
        ...

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """How `name` is stored where it is a quantised matrix; `read` gives it in floats all the same."""
        return None


def whole(tensors: Tensors, name: str) -> np.ndarray:
    """All of a tensor, in its own shape."""
    shape = tensors.shape(name)
    return tensors.read(name, shape, tuple(slice(None) for _ in shape))


def swapped(axes: tuple[Any, ...]) -> tuple[Any, ...]:
    """`axes`, or what is said of each, with the last two in the other order."""
    return (*axes[:-2], axes[-1], axes[-2])


def equal(tensors: Tensors, one: str, other: str) -> bool:
    """Whether two tensors hold the same; reads both whole, unless they are one array stored once."""
    shape = tensors.shape(one)
    if shape != tensors.shape(other):
        return False
    whole = tuple(slice(None) for _ in shape)
    return same_storage(tensors, one, other) or np.array_equal(
        tensors.read(one, shape, whole), tensors.read(other, shape, whole)
    )


def same_storage(tensors: Tensors, one: str, other: str) -> bool:
    """Whether two tensors are one array stored once, as a tied head is in PyTorch's own files."""
    shape = tensors.shape(one)
    if shape != tensors.shape(other) or 0 in shape:
        return False
    first = tuple(slice(0, 1) for _ in shape)
    return np.shares_memory(tensors.read(one, shape, first), tensors.read(other, shape, first))
