"""Two parts of one checkpoint, each under names of its own, as one."""

from collections.abc import Iterator

import numpy as np

from convert.formats.quantized_matrix import QuantizedMatrix
from convert.formats.tensors import Index, Tensors


class UnitedTensors(Tensors):
    """`first` and `second`; where both have a name, it means that of `first`."""

    def __init__(self, first: Tensors, second: Tensors) -> None:
        self._first, self._second = first, second

    def __contains__(self, name: object) -> bool:
        return name in self._first or name in self._second

    def __iter__(self) -> Iterator[str]:
        yield from self._first
        yield from (name for name in self._second if name not in self._first)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of(name).shape(name)

    def dtype(self, name: str) -> str:
        return self._of(name).dtype(name)

    def where(self, name: str) -> str:
        return self._of(name).where(name)

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        return self._of(name).read(name, view, index)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return self._of(name).quantized(name)

    def _of(self, name: str) -> Tensors:
        return self._first if name in self._first else self._second
