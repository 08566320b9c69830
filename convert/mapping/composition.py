"""Composition: the engine's parameters out of checkpoint tensors, by recipes.

To read a slice of a parameter, only the boxes that the slice touches are read, and of each box only the rows needed.
Everything is checked before the first read: a checkpoint with a missing, misshapen, non-floating or unexpected tensor
is refused.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from convert.errors import CheckpointError
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.formats.tensors import Index, Tensors, same_storage, swapped
from convert.mapping.joined import joined
from convert.mapping.part import Part, Recipe
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, empty, parameter_table
from jaxengine.architecture.weight_format import CODES, Component, StoredWeight, WeightFormat

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
        self._recipes = {name: _turned(recipe, tensors) for name, recipe in recipes.items()}
        self._parameters = parameter_table(spec)
        check(tensors, self._recipes, tuple(ignore))

    @property
    def dtype(self) -> str:
        return self._tensors.dtype(self._recipes["embedding"].parts[0].tensor)

    def read(self, name: str, index: Index) -> np.ndarray:
        recipe, shape = self._recipes[name], self._parameters[name].shape
        wanted = ranges(index, shape)
        if recipe.unit_rows:
            rows = assemble(recipe, [wanted[0], (0, shape[1])], self._tensors.read)
            return _unit_rows(rows)[:, slice(*wanted[1])]
        return assemble(recipe, wanted, self._tensors.read)

    def stored(self, name: str) -> StoredWeight | None:
        """How `name` is stored, where all its tensors are quantised and one format holds them."""
        recipe = self._recipes[name]
        if recipe.unit_rows or any(part.input_major or part.tensor not in self._tensors for part in recipe.parts):
            return None
        found = {part.tensor: self._tensors.quantized(part.tensor) for part in recipe.parts}
        matrices = {tensor: matrix for tensor, matrix in found.items() if matrix}
        whole = joined(matrices) if len(matrices) == len(found) else None
        if whole is None:
            return None
        format = next(iter(whole.values())).format
        if not all(_of_whole_groups(part, format.group) for part in recipe.parts):
            return None
        packed = all(matrix.words for matrix in whole.values()) and all(map(_of_whole_words, recipe.parts))
        return StoredWeight(format, partial(self._read_component, name, format, whole), packed)

    def _read_component(
        self,
        name: str,
        format: WeightFormat,
        matrices: Mapping[str, QuantizedMatrix],
        component: Component,
        index: Index,
    ) -> np.ndarray:
        parameter = self._parameters[name]
        shape = parameter.component(component, format).shape

        def read(tensor: str, view: tuple[int, ...], index: Index) -> np.ndarray:
            return matrices[tensor].component(component, view, index)

        if component == "order":  # the same of all
            return next(iter(matrices.values())).component(component, shape, index)
        if component in ("values", "words"):
            recipe = self._recipes[name] if component == "values" else _of_words(self._recipes[name])
            return assemble(recipe, ranges(index, shape), read)
        outputs = len(parameter.shape) - parameter.inputs
        recipe = of_groups(self._recipes[name], outputs, max(1, format.group and shape[-1]))
        wanted = ranges(index, shape)
        if format.group:
            return assemble(recipe, wanted, read)
        return assemble(recipe, [*wanted, (0, 1)], read)[..., 0]


Read = Callable[[str, tuple[int, ...], Index], np.ndarray]


def _turned(recipe: Recipe, tensors: Tensors) -> Recipe:
    """`recipe` for a checkpoint whose quantised matrices are `[out, in]`, whatever the family's are."""

    def turned(part: Part) -> Part:
        quantized = part.input_major and part.tensor in tensors and tensors.quantized(part.tensor)
        return output_major(part) if quantized else part

    return replace(recipe, parts=tuple(map(turned, recipe.parts)))


def output_major(part: Part) -> Part:
    """`part` of the same matrix stored `[out, in]`."""
    if not part.input_major or _outputs_first(part):
        return part
    inputs = len(part.shape) - 1
    order = (*(axis for axis in part.order if axis != inputs), inputs) if part.order else ()
    return replace(part, stored=swapped(part.stored), transposed=False, order=order)


def _outputs_first(part: Part) -> bool:
    """Whether only the inputs of a matrix, which it has several axes of, are stored in another order."""
    outputs = len(part.shape) - part.inputs
    return part.inputs > 1 and not part.transposed and part.order[:outputs] == tuple(range(outputs))


def of_groups(recipe: Recipe, outputs: int, groups: int) -> Recipe:
    """The recipe of what has the same rows, with `groups` numbers in place of the axes behind the first `outputs`:
    scales and zeros, or the outputs' factor of an adapter. Its matrices are `[out, in]`.
    """

    def part_of(part: Part) -> Part:
        rows = math.prod(part.stored[:-1])
        columns = part.columns
        if columns is not None:  # of each group its first, counted in groups
            columns = columns.reshape(groups, -1)[:, 0] * groups // columns.size
        return replace(
            part,
            columns=columns,
            stored=(rows, groups),
            start=(*part.start[:outputs], 0),
            shape=(*part.shape[:outputs], groups),
            inputs=1,
        )

    return Recipe(tuple(map(part_of, recipe.parts)))


def _of_whole_groups(part: Part, group: int) -> bool:
    """Whether the inputs that share a scale lie together, however the checkpoint orders them."""
    if part.columns is None or not group:
        return True
    if part.columns.size % group:
        return False
    together = part.columns.reshape(-1, group)
    return bool((together == together[:, :1] // group * group + np.arange(group)).all())


def _of_whole_words(part: Part) -> bool:
    return part.columns is None and part.start[-1] % CODES == 0 and part.shape[-1] % CODES == 0


def _of_words(recipe: Recipe) -> Recipe:
    """The recipe of values, with words in place of the codes of the last axis."""

    def last(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (*sizes[:-1], sizes[-1] // CODES)

    parts = (
        replace(part, stored=last(part.stored), start=last(part.start), shape=last(part.shape)) for part in recipe.parts
    )
    return Recipe(tuple(parts))


def ranges(index: Index, shape: Sequence[int]) -> list[Range]:
    """What `index` takes of each axis of an array."""
    full = (*index, *(slice(None) for _ in shape[len(index) :]))
    return [_bounds(cut, extent) for cut, extent in zip(full, shape, strict=True)]


def assemble(recipe: Recipe, wanted: Sequence[Range], read: Read) -> np.ndarray:
    """What `recipe` makes of the tensors that `read` reads, in the ranges `wanted` of its parameter."""
    touched = [(part, common) for part in recipe.parts if (common := _overlap(part, wanted)) is not None]
    if len(touched) == 1:
        return _read(*touched[0], read)
    values: np.ndarray | None = None
    for part, common in touched:
        piece = _read(part, common, read)
        if values is None:
            values = empty([last - first for first, last in wanted], piece.dtype)
        at = [slice(low - origin, high - origin) for (low, high), (origin, _) in zip(common, wanted, strict=True)]
        values[tuple(at)] = piece
    assert values is not None  # the boxes of a recipe cover its parameter
    return values


def _read(part: Part, common: list[Range], read: Read) -> np.ndarray:
    """The elements of `part` in the ranges `common` of the parameter."""
    cuts = [slice(low - start, high - start) for (low, high), start in zip(common, part.start, strict=True)]
    outputs = len(part.shape) - part.inputs
    if part.order:
        view, index = tuple(part.shape[axis] for axis in part.order), tuple(cuts[axis] for axis in part.order)
        return read(part.tensor, view, index).transpose(np.argsort(part.order))
    if part.rows is None and part.columns is None and not part.transposed:
        return read(part.tensor, part.shape, tuple(cuts))
    rows = np.arange(math.prod(part.shape[:outputs])) if part.rows is None else part.rows
    rows = rows.reshape(part.shape[:outputs])[tuple(cuts[:outputs])]
    span = slice(int(rows.min()), int(rows.max()) + 1)
    block = _rows(part, span, tuple(cuts[outputs:]), read)
    picked: np.ndarray = block[rows - span.start]
    return picked


def _rows(part: Part, span: slice, inner: Index, read: Read) -> np.ndarray:
    """Stored rows `span`, each cut to `inner` of its elements: [rows, …]."""
    trailing = part.shape[len(part.shape) - part.inputs :]
    count = math.prod(part.stored) // math.prod(trailing)
    if part.columns is not None:
        columns = part.columns[inner]
        first, last = int(columns.min()), int(columns.max()) + 1
        block = read(part.tensor, (count, part.columns.size), (span, slice(first, last)))
        return block[:, columns - first]
    if part.transposed:
        return np.moveaxis(read(part.tensor, (*trailing, count), (*inner, span)), -1, 0)
    return read(part.tensor, (count, *trailing), (span, *inner))


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


def _bounds(cut: slice, extent: int) -> Range:
    start, stop, step = cut.indices(extent)
    if step != 1 or stop <= start:
        raise CheckpointError(f"slice {cut} of an axis of {extent} must be a non-empty contiguous range")
    return start, stop


def _overlap(part: Part, wanted: Sequence[Range]) -> list[Range] | None:
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


def check(tensors: Tensors, recipes: Mapping[str, Recipe], ignore: tuple[str, ...], what: str = "checkpoint") -> None:
    """Raises CheckpointError unless `tensors` are exactly those of `recipes`, in their shapes and in floats. Others may
    be there whose names match one of `ignore`. `what` holds them is named where one is missing.
    """
    parts = [part for recipe in recipes.values() for part in recipe.parts]
    missing = list(dict.fromkeys(part.tensor for part in parts if part.tensor not in tensors))
    if missing:
        raise CheckpointError(f"{what} lacks {_several(missing)}")
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
