"""A checkpoint's tensors under other names, and without some of them."""

import re
from collections.abc import Iterator

import numpy as np

from convert.errors import CheckpointError
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.formats.tensors import Index, Tensors, equal


class RenamedTensors(Tensors):
    """`Tensors` under other names: each of `renames`, a pattern and its replacement, changes its first match in a name.

    Tensors whose own name matches `but`, or does not match `only`, are left out.

    Raises:
        CheckpointError: two that differ get the same name.
    """

    def __init__(
        self,
        tensors: Tensors,
        renames: tuple[tuple[str, str], ...],
        but: str | None = None,
        only: str | None = None,
    ) -> None:
        self._tensors = tensors
        kept = [name for name in tensors if but is None or not re.search(but, name)]
        kept = [name for name in kept if only is None or re.search(only, name)]
        self._stored: dict[str, str] = {}
        for name in kept:
            new = renamed(name, renames)
            if (other := self._stored.setdefault(new, name)) != name and not equal(tensors, other, name):
                raise CheckpointError(f"{tensors.where(name)}: tensors {other!r} and {name!r} are one, and differ")

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(self._stored[name])

    def dtype(self, name: str) -> str:
        return self._tensors.dtype(self._stored[name])

    def where(self, name: str) -> str:
        return self._tensors.where(self._stored[name])

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        return self._tensors.read(self._stored[name], view, index)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return self._tensors.quantized(self._stored[name])


def renamed(name: str, renames: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name, count=1)
    return name
