"""Composition: the engine's parameters out of checkpoint tensors, by recipes.

To read a slice of a parameter, only the boxes that the slice touches are read, and of each box only the rows needed.
Everything is checked before the first read: a checkpoint with a missing, misshapen, non-floating or unexpected tensor
is refused.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convert.errors import CheckpointError
from convert.formats.tensors import Index, Tensors, same_storage
from convert.mapping.recipes import Part, Recipe
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, empty, parameter_table
from jaxengine.architecture.weight_format import StoredWeight

FLOATING = ("float32", "bfloat16", "float16", "float64")

Range = tuple[int, int]


class ComposedSource:
    """A `ParameterSource` over a checkpoint's tensors.

    Raises:
        CheckpointError: the checkpoint does not hold exactly the tensors of `recipes`, in their shapes.
    """

    def __init__(
        self, spec: ModelSpec, tensors: Tensors, recipes: Mapping[str, Recipe], ignore: Iterable[str] = ()
    ) -> None:
        self.spec = spec
        self._tensors = tensors
        self._recipes = recipes
        self._shapes = {name: parameter.shape for name, parameter in parameter_table(spec).items()}
        _check(tensors, recipes, tuple(ignore))

    @property
    def dtype(self) -> str:
        return self._tensors.dtype(self._recipes["embedding"].parts[0].tensor)

    def read(self, name: str, index: Index) -> np.ndarray:
        recipe, shape = self._recipes[name], self._shapes[name]
        full = (*index, *(slice(None) for _ in shape[len(index) :]))
        wanted = [_bounds(cut, extent) for cut, extent in zip(full, shape, strict=True)]
        if recipe.unit_rows:
            rows = self._assemble(recipe, [wanted[0], (0, shape[1])])
            return _unit_rows(rows)[:, slice(*wanted[1])]
        return self._assemble(recipe, wanted)

    def stored(self, name: str) -> StoredWeight | None:
        return None

    def _assemble(self, recipe: Recipe, wanted: list[Range]) -> np.ndarray:
        touched = [(part, common) for part in recipe.parts if (common := _overlap(part, wanted)) is not None]
        if len(touched) == 1:
            return self._read(*touched[0])
        values: np.ndarray | None = None
        for part, common in touched:
            piece = self._read(part, common)
            if values is None:
                values = empty([last - first for first, last in wanted], piece.dtype)
            at = [slice(low - origin, high - origin) for (low, high), (origin, _) in zip(common, wanted, strict=True)]
            values[tuple(at)] = piece
        assert values is not None  # the boxes of a recipe cover its parameter
        return values

    def _read(self, part: Part, common: list[Range]) -> np.ndarray:
        """The elements of `part` in the ranges `common` of the parameter."""
        cuts = [slice(low - start, high - start) for (low, high), start in zip(common, part.start, strict=True)]
        outputs = len(part.shape) - part.inputs
        if part.swapped:
            view, index = (_swapped(part.shape), _swapped(tuple(cuts)))
            return self._tensors.read(part.tensor, view, index).swapaxes(-1, -2)
        if part.rows is None and not part.transposed:
            return self._tensors.read(part.tensor, part.shape, tuple(cuts))
        rows = np.arange(math.prod(part.shape[:outputs])) if part.rows is None else part.rows
        rows = rows.reshape(part.shape[:outputs])[tuple(cuts[:outputs])]
        span = slice(int(rows.min()), int(rows.max()) + 1)
        block = self._rows(part, span, tuple(cuts[outputs:]))
        picked: np.ndarray = block[rows - span.start]
        return picked

    def _rows(self, part: Part, span: slice, inner: Index) -> np.ndarray:
        """Stored rows `span`, each cut to `inner` of its elements: [rows, …]."""
        trailing = part.shape[len(part.shape) - part.inputs :]
        count = math.prod(part.stored) // math.prod(trailing)
        if part.transposed:
            return np.moveaxis(self._tensors.read(part.tensor, (*trailing, count), (*inner, span)), -1, 0)
        return self._tensors.read(part.tensor, (count, *trailing), (span, *inner))


@dataclass(frozen=True)
class SourceWithSpec:
    """The arrays of `source` under another `spec` of the same shapes."""

    source: ParameterSource
    spec: ModelSpec

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def read(self, name: str, index: Index) -> np.ndarray:
        return self.source.read(name, index)

    def stored(self, name: str) -> StoredWeight | None:
        return self.source.stored(name)


def _swapped(axes: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*axes[:-2], axes[-1], axes[-2])


def _bounds(cut: slice, extent: int) -> Range:
    start, stop, step = cut.indices(extent)
    if step != 1 or stop <= start:
        raise CheckpointError(f"slice {cut} of an axis of {extent} must be a non-empty contiguous range")
    return start, stop


def _overlap(part: Part, wanted: list[Range]) -> list[Range] | None:
    """The part of the ranges `wanted` that lies in the box of `part`; None if there is none."""
    common = [
        (max(low, start), min(high, start + extent))
        for (low, high), start, extent in zip(wanted, part.start, part.shape, strict=True)
    ]
    return common if all(low < high for low, high in common) else None


def _unit_rows(values: np.ndarray) -> np.ndarray:
    """Rows [n, width] divided by their length, as torch's `normalize` does."""
    length = np.linalg.norm(values.astype(np.float32), axis=1, keepdims=True)
    return (values / np.maximum(length, 1e-12)).astype(values.dtype)


def _check(tensors: Tensors, recipes: Mapping[str, Recipe], ignore: tuple[str, ...]) -> None:
    parts = [part for recipe in recipes.values() for part in recipe.parts]
    missing = list(dict.fromkeys(part.tensor for part in parts if part.tensor not in tensors))
    if missing:
        raise CheckpointError(f"checkpoint lacks {_several(missing)}")
    for part in parts:
        shape, dtype = tensors.shape(part.tensor), tensors.dtype(part.tensor)
        where = f"{tensors.where(part.tensor)}: tensor {part.tensor!r}"
        if shape != part.stored:
            raise CheckpointError(f"{where} has shape {list(shape)}, the configuration says {list(part.stored)}")
        if dtype not in FLOATING:
            raise CheckpointError(f"{where} has type {dtype}, supported are {', '.join(FLOATING)}")
    expected = {part.tensor for part in parts}
    extra = [name for name in tensors if name not in expected and not any(re.search(p, name) for p in ignore)]
    extra = [name for name in extra if not any(same_storage(tensors, name, other) for other in expected)]
    if extra:
        raise CheckpointError(f"{tensors.where(extra[0])}: the model has no place for {_several(extra)}")


def _several(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"tensor {shown}" if len(names) == 1 else f"{len(names)} tensors: {shown}{', …' if len(names) > 3 else ''}"
