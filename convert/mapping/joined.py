"""Matrices of several formats in one: what is one parameter of the engine may be stored with other bits and groups in
each of its tensors (q, k and v; gate and up), as GPTQ's `dynamic` and compressed-tensors' groups of modules have it.

Nothing is rounded. Codes get the most bits that any has, and become unsigned where any has zero points; groups get a
size that divides all sizes. What no format holds exactly is read in floats: codes of different tables, integers beside
floats, inputs in different orders.
"""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from convert.formats.quantized_matrix import QuantizedMatrix
from jaxengine.architecture.weight_format import Component, WeightFormat

INTEGERS = {"int8", "uint8"}


def joined(matrices: Mapping[str, QuantizedMatrix]) -> Mapping[str, QuantizedMatrix] | None:
    """The same matrices [out, in] with one format and one order of their inputs, by the same names; None if there is
    none for all.
    """
    first = next(iter(matrices.values()))
    if not all(matrix.in_parts and matrix.shape[-1] == first.shape[-1] for matrix in matrices.values()):
        return None
    formats, inputs = {matrix.format for matrix in matrices.values()}, first.shape[-1]
    order = None
    if any(format.ordered for format in formats):
        order = min(matrices.values(), key=lambda matrix: matrix.format.group or inputs).order
        if not all(_regular(matrix, order) for matrix in matrices.values()):
            return None
    if len(formats) == 1:
        return matrices
    format = _format(formats, inputs)
    if format is None:
        return None
    groups = None
    if order is not None:
        groups = np.empty(inputs, np.int32)
        groups[order] = np.arange(inputs, dtype=np.int32) // format.group
    return {
        name: QuantizedMatrix(
            matrix.shape,
            format,
            partial(_read, matrix, format),
            groups,
            matrix.words if format.bits <= 4 else None,  # whose codes are never negative
        )
        for name, matrix in matrices.items()
    }


def _regular(matrix: QuantizedMatrix, order: np.ndarray) -> bool:
    """Whether each group of `matrix` has consecutive inputs of `order`."""
    wanted = np.arange(len(order)) // (matrix.format.group or len(order))
    return np.array_equal(matrix.groups_of(slice(None))[order], wanted)


def _format(formats: set[WeightFormat], inputs: int) -> WeightFormat | None:
    """One that holds exactly what each of `formats` does in a matrix of so many inputs."""
    values, scales = {each.values for each in formats}, {each.scales for each in formats}
    table, *tables = {each.table for each in formats}
    with_zeros = len(values) > 1 or any(each.zeros for each in formats)
    if tables or (with_zeros and (table or not values <= INTEGERS)):
        return None
    group = math.gcd(*(each.group or inputs for each in formats))
    whole = all(each.zeros in (None, *INTEGERS) for each in formats)
    return WeightFormat(
        " and ".join(sorted({each.name for each in formats})),
        "uint8" if with_zeros else values.pop(),
        scales.pop() if len(scales) == 1 else "float32",
        ("uint8" if whole else "float32") if with_zeros else None,
        0 if group == inputs else group,
        table,
        max(each.bits for each in formats),
        any(each.ordered for each in formats),
    )


def _read(
    matrix: QuantizedMatrix, format: WeightFormat, component: Component, rows: slice, columns: slice
) -> np.ndarray:
    """Rows and columns of a component of `matrix` in `format`."""
    own, inputs = matrix.format, matrix.shape[-1]
    raised = 0 if own.values == format.values else 1 << (own.bits - 1)  # signed codes become unsigned
    if component == "values":
        values = matrix.read(component, rows, columns)
        return values if not raised else (values.view(np.uint8) + np.uint8(raised))
    size, of_one = own.group or inputs, format.group or inputs
    groups = np.arange(columns.start, columns.stop) * of_one // size
    if component == "zeros" and own.zeros is None:
        return np.full((rows.stop - rows.start, len(groups)), raised, format.zeros)
    span = slice(int(groups[0]), int(groups[-1]) + 1)
    shared = matrix.read(component, rows, span)[:, groups - span.start]
    if component == "scales":
        return shared.astype(format.scales)
    return (shared.astype(np.float32) + np.float32(raised)).astype(format.zeros)
