"""The tensors that a checkpoint must have by its configuration, where there is no checkpoint."""

from collections.abc import Iterator, Mapping

import numpy as np

from convert.errors import CheckpointError
from convert.formats.tensors import Index, Tensors
from convert.mapping.part import Recipe


class DescribedTensors(Tensors):
    """Those that `recipes` are made of, each a `dtype`. None can be read.

    Biases that only a checkpoint tells of are not among them.
    """

    def __init__(self, recipes: Mapping[str, Recipe], dtype: str, where: str) -> None:
        self._shapes = {part.tensor: part.stored for recipe in recipes.values() for part in recipe.parts}
        self._dtype, self._where = dtype, where

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> str:
        return self._dtype

    def where(self, name: str) -> str:
        return self._where

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        raise CheckpointError(f"{self._where}: describes tensor {name!r}, and there are no weights")
