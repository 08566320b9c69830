"""A matrix that a checkpoint holds quantised, whichever tool wrote it: its components by slice, and their meaning.

    w[out, in] = (table[values[out, in]] - zeros[out, group of in]) * scales[out, group of in]

Without a table the values are numbers themselves. A tool's own layout ends at `read`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from jaxengine.architecture.weight_format import CODES, Component, WeightFormat

Index = tuple[slice, ...]
Box = Callable[[slice, slice], np.ndarray]  # rows and columns of a matrix → that part of it


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """
    shape: [stacked…, out, in]; rows are all axes but the last, flattened.
    format: of the components.
    read: rows and columns of a component, both contiguous ranges → [rows, columns]. The columns of scales and zeros are
        groups, a single one where `format.group` is 0. Called from several threads at once.
    groups: i32 [in], the group of each input; None where consecutive inputs share one, as `format` says. Where that is
        ordered, they do once sorted by group.
    words: rows and columns of the codes as they are packed, u32 [rows, in/8], with inputs as the model has them; see
        `weight_format`. May be views. None where codes have another width or are not packed along the inputs.
    """

    shape: tuple[int, ...]
    format: WeightFormat
    read: Callable[[Component, slice, slice], np.ndarray]
    groups: np.ndarray | None = None
    words: Box | None = None

    def dense(self, view: tuple[int, ...], index: Index) -> np.ndarray:
        """f32: `matrix.reshape(view)[index]` in floats."""
        return read_view(self.shape, view, index, self._dense)

    @property
    def in_parts(self) -> bool:
        """Whether components can be read: groups are of one size, and consecutive at least in `order`."""
        return self.groups is None or self.format.ordered

    @cached_property
    def order(self) -> np.ndarray:
        """i32 [in]: the inputs sorted by their groups, each group's as they follow each other."""
        return np.argsort(self.groups_of(slice(None)), kind="stable").astype(np.int32)

    def component(self, component: Component, view: tuple[int, ...], index: Index) -> np.ndarray:
        """`component.reshape(view)[index]` of the matrix with its inputs in `order`."""
        if component == "order":
            return self.order.reshape(view)[index]
        if component == "words":
            assert self.words is not None
            return read_view((*self.shape[:-1], self.shape[-1] // CODES), view, index, self.words)
        of_one = 1 if component == "values" else self.format.group or self.shape[-1]  # inputs
        shape = (*self.shape[:-1], self.shape[-1] // of_one)
        sorted_values = component == "values" and self.format.ordered
        return read_view(shape, view, index, self._sorted_values if sorted_values else partial(self.read, component))

    def _sorted_values(self, rows: slice, columns: slice) -> np.ndarray:
        span, at = _span(self.order[columns])
        box = self.read("values", rows, span)
        return box if at is None else box[:, at]

    def _dense(self, rows: slice, columns: slice) -> np.ndarray:
        values = self.read("values", rows, columns)
        table = self.format.table
        whole = np.asarray(table, np.float32)[values] if table else values.astype(np.float32)
        groups = self.groups_of(columns)
        span = slice(int(groups.min()), int(groups.max()) + 1)

        def per_input(component: Component) -> np.ndarray:
            shared = self.read(component, rows, span).astype(np.float32)
            return shared if shared.shape[1] == 1 else shared[:, groups - span.start]

        if self.format.zeros is not None:
            whole -= per_input("zeros")
        whole *= per_input("scales")
        return whole

    def groups_of(self, columns: slice) -> np.ndarray:
        """i32 [columns]."""
        if self.groups is not None:
            return self.groups[columns]
        inputs = np.arange(self.shape[-1], dtype=np.int32)[columns]
        return inputs // (self.format.group or self.shape[-1])


def read_view(shape: Sequence[int], view: tuple[int, ...], index: Index, read: Box) -> np.ndarray:
    """`matrix.reshape(view)[index]`, where `read` gives boxes of the matrix, whose last axis is its columns."""
    total, width = math.prod(shape[:-1]), shape[-1]
    outer = next((axes for axes in range(len(view) + 1) if math.prod(view[axes:]) == width), None)
    index = (*index, *(slice(None) for _ in view[len(index) :]))
    if outer is None:  # a view that cuts rows apart or joins them
        return read(slice(0, total), slice(0, width)).reshape(view)[index]
    rows = np.arange(total).reshape(view[:outer])[index[:outer]]
    columns = np.arange(width).reshape(view[outer:])[index[outer:]]
    (of_rows, at_rows), (of_columns, at_columns) = _span(rows), _span(columns)
    box = read(of_rows, of_columns)
    box = box if at_rows is None else box[at_rows]
    box = box if at_columns is None else box[:, at_columns]
    return box.reshape(*rows.shape, *columns.shape)


def _span(numbers: np.ndarray) -> tuple[slice, np.ndarray | None]:
    """The range that holds `numbers`, and where they lie in it; None where they are all of it, in order."""
    flat = numbers.ravel()
    first, last = int(flat.min()), int(flat.max())
    span = slice(first, last + 1)
    return span, None if len(flat) == last + 1 - first and (np.diff(flat) == 1).all() else flat - first
