"""Decomposition: checkpoint tensors out of the engine's parameters, by the recipes that make parameters of tensors."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from convert.formats.tensors import Index, Tensors
from convert.mapping.part import Part, Recipe
from jaxengine.architecture.parameters import ParameterSource


def tensor_rows(recipe: Recipe, values: np.ndarray, outputs: int) -> dict[str, np.ndarray]:
    """What each tensor of `recipe` has of `values`, in its own order of rows: [rows, …] each.

    Args:
        values: a parameter, or what belongs to its rows: `outputs` axes as the parameter has them, and any others.
    """
    table = values.reshape(*values.shape[:outputs], -1)
    tensors: dict[str, np.ndarray] = {}
    for part in recipe.parts:
        assert not part.order, "experts in one matrix are not taken apart"
        box = tuple(slice(start, start + size) for start, size in zip(part.start, part.shape, strict=True))
        taken = table[box[:outputs]]
        rows = np.arange(math.prod(part.shape[:outputs])) if part.rows is None else part.rows
        count = math.prod(part.stored) // math.prod(part.shape[outputs:])
        tensor = tensors.setdefault(part.tensor, np.zeros((count, table.shape[-1]), table.dtype))
        tensor[rows.reshape(-1)] = taken.reshape(-1, table.shape[-1])
    return tensors


class DecomposedTensors(Tensors):
    """The tensors of which `recipes` would make the parameters of `source`, in `dtype`."""

    def __init__(self, source: ParameterSource, recipes: Mapping[str, Recipe], dtype: str) -> None:
        self._source = source
        self._recipes = recipes
        self._dtype = dtype
        self._parts = {part.tensor: (name, part) for name, recipe in recipes.items() for part in recipe.parts}

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name][1].stored

    def dtype(self, name: str) -> str:
        return self._dtype

    def where(self, name: str) -> str:
        return "parameter " + self._parts[name][0]

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        """Makes all tensors of the parameter that `name` is part of."""
        parameter, part = self._parts[name]
        values = self._source.read(parameter, ())
        rows = tensor_rows(self._recipes[parameter], values, values.ndim - part.inputs)[name]
        return _as_stored(part, rows).reshape(view)[index]


def _as_stored(part: Part, rows: np.ndarray) -> np.ndarray:
    return rows.T.reshape(part.stored) if part.transposed else rows.reshape(part.stored)
