"""Parameters composed of checkpoint tensors: the bridge from a format's names to the engine's table.

A `Recipe` says which tensors, seen in the table's layout and joined along one axis, make a parameter. Reading a slice
of the parameter reads only that slice of each tensor. Everything is checked before the first read: a checkpoint with a
missing, misshapen, non-floating or unexpected tensor never starts.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from convert.errors import CheckpointError
from convert.formats.tensors import Index, Tensors
from jaxengine.model.spec import ModelSpec, Parameter, parameter_table

FLOATING = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Part:
    tensor: str
    stored: tuple[int, ...]  # shape in the checkpoint
    view: tuple[int, ...]  # the same elements in the table's layout


@dataclass(frozen=True)
class Recipe:
    parts: tuple[Part, ...]
    axis: int  # parts are joined along it


def identity(spec: ModelSpec) -> dict[str, Recipe]:
    """Recipes of a checkpoint that already has the table's names and layout."""
    table = parameter_table(spec)
    return {name: Recipe((Part(name, p.shape, p.shape),), 0) for name, p in table.items()}


def recipes(spec: ModelSpec, tensors: Mapping[str, tuple[str, ...]]) -> dict[str, Recipe]:
    """Recipes from a family's names: `tensors["layers.{i}.qkv"] = ("…layers.{i}.q_proj.weight", …)`."""
    named = {}
    for name, parameter in parameter_table(spec).items():
        layer = re.search(r"\d+", name)
        number = layer.group() if layer else ""
        sources = tensors[re.sub(r"\d+", "{i}", name, count=1)]
        named[name] = _recipe(name.rsplit(".", 1)[-1], spec, parameter, [s.replace("{i}", number) for s in sources])
    return named


def _recipe(kind: str, spec: ModelSpec, parameter: Parameter, sources: list[str]) -> Recipe:
    """Checkpoints keep one matrix [out, in] per projection; the table splits those two axes and joins projections."""
    axis, extents = 0, [parameter.shape[0]]
    if kind in ("qkv", "qkv_bias"):
        axis, extents = 1, [spec.group, 1, 1]
    elif kind in ("gate_up", "gate_up_bias"):
        extents = [1, 1]
    inputs = 3 if kind == "out" else 0 if kind.endswith(("_bias", "_norm")) else 1
    parts = []
    for source, extent in zip(sources, extents, strict=True):
        view = (*parameter.shape[:axis], extent, *parameter.shape[axis + 1 :])
        outputs = len(view) - inputs
        stored = (math.prod(view[:outputs]), *([math.prod(view[outputs:])] if inputs else []))
        parts.append(Part(source, stored, view))
    return Recipe(tuple(parts), axis)


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
        ranges = [_bounds(cut, extent) for cut, extent in zip(full, shape, strict=True)]
        pieces, offset = [], 0
        for part in recipe.parts:
            extent = part.view[recipe.axis]
            first, last = (min(max(edge - offset, 0), extent) for edge in ranges[recipe.axis])
            offset += extent
            if first < last or len(recipe.parts) == 1:
                cuts = [
                    slice(first, last) if axis == recipe.axis else slice(*edges) for axis, edges in enumerate(ranges)
                ]
                pieces.append(self._tensors.read(part.tensor, part.view, tuple(cuts)))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=recipe.axis)


def _bounds(cut: slice, extent: int) -> tuple[int, int]:
    start, stop, step = cut.indices(extent)
    if step != 1 or stop <= start:
        raise CheckpointError(f"slice {cut} of an axis of {extent} must be a non-empty contiguous range")
    return start, stop


def _check(tensors: Tensors, recipes: Mapping[str, Recipe], ignore: tuple[str, ...]) -> None:
    parts = [part for recipe in recipes.values() for part in recipe.parts]
    missing = [part.tensor for part in parts if part.tensor not in tensors]
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
    if extra:
        raise CheckpointError(f"{tensors.where(extra[0])}: the model has no place for {_several(extra)}")


def _several(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"tensor {shown}" if len(names) == 1 else f"{len(names)} tensors: {shown}{', …' if len(names) > 3 else ''}"
