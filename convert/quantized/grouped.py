"""A matrix of codes with scales, and perhaps zero points, for groups of its inputs: what most methods come to."""

from collections.abc import Callable

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import Box, QuantizedMatrix
from convert.quantized.method import Module
from jaxengine.architecture.weight_format import CODES, Component, WeightFormat

INTEGERS = ("int32", "int64")
OF_MODULES = ("dynamic", "extra_config")  # where GPTQModel and AutoRound give some modules other bits and groups


def grouped(
    name: str,
    inputs: int,
    dtype: str,
    values: Box,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    *,
    bits: int = 8,
    size: int | None = None,
    of_inputs: np.ndarray | None = None,
    table: tuple[float, ...] = (),
    words: Box | None = None,
    scale_of: Callable[[np.ndarray], np.ndarray] | None = None,
) -> QuantizedMatrix:
    """The matrix [out, inputs] of `values` in `dtype`.

    Args:
        name: of the format, in messages. Eight bits with one scale a channel are the engine's own format.
        bits: of a value.
        scales, zeros: [out, groups].
        size: of a group; the last one may be smaller. None where the groups are of one size.
        of_inputs: [inputs], the group of each input where groups are not consecutive.
        words: the codes as `QuantizedMatrix` has them packed, where the inputs fill whole words.
        scale_of: scales, in floats, of what `scales` has, which are then computed as they are read.
    """
    groups = scales.shape[1]
    size = size or -(-inputs // groups)
    if groups == 1 and scale_of is None:
        scales = scales.astype(np.float32)
    plain = groups == 1 and zeros is None and not table
    of_inputs = _irregular(inputs, size, of_inputs)
    format = WeightFormat(
        "int8" if plain and dtype == "int8" and bits > 4 else "fp8" if plain and dtype == "float8_e4m3fn" else name,
        dtype,
        str(scale_of(scales[:0]).dtype if scale_of else scales.dtype),
        None if zeros is None else str(zeros.dtype),
        0 if groups == 1 else size,
        table,
        4 if bits <= 4 else 8,
        of_inputs is not None and bool((np.bincount(of_inputs, minlength=groups) == size).all()),
    )

    def read(component: Component, rows: slice, columns: slice) -> np.ndarray:
        if component == "values":
            return values(rows, columns)
        if component == "scales":
            return scale_of(scales[rows, columns]) if scale_of else scales[rows, columns]
        assert zeros is not None
        return zeros[rows, columns]

    return QuantizedMatrix((scales.shape[0], inputs), format, read, of_inputs, None if inputs % CODES else words)


def _irregular(inputs: int, size: int, of_inputs: np.ndarray | None) -> np.ndarray | None:
    """i32 [inputs], or None where all groups are consecutive and of one size."""
    consecutive = np.arange(inputs, dtype=np.int32) // size
    of_inputs = consecutive if of_inputs is None else of_inputs.astype(np.int32)
    return None if inputs % size == 0 and np.array_equal(of_inputs, consecutive) else of_inputs


def configured_size(config: Config, *keys: str) -> int | None:
    """How many inputs share a scale, by the first of `keys` that is set: -1 for all of them, None where none is set."""
    key = config.spelled(*keys)
    if (size := config.get(key)) is None:
        return None
    if type(size) is not int or not (size == -1 or 0 < size < 2**31):
        raise config.error(key, "must be a positive integer, or -1")
    return size


def modules_are_alike(config: Config) -> bool:
    return not any(config.get(each) for each in OF_MODULES)


def group_size(module: Module, suffix: str, inputs: int, groups: int, size: int | None, *, alike: bool = True) -> int:
    """The size of the groups that tensor `suffix` has: as configured, or else an even part of the inputs, as where this
    module need not be like others.

    Raises:
        CheckpointError: groups of that size are not so many.
    """
    if not alike and groups != -(-inputs // max(size or 1, 1)):
        size = None
    size = inputs if size == -1 else size or max(1, inputs // groups)
    if groups != -(-inputs // size):
        raise module.error(
            suffix, f"has {groups} groups, {inputs} inputs in groups of {size} must have {-(-inputs // size)}"
        )
    return size


def groups_of_inputs(module: Module, suffix: str, inputs: int, groups: int) -> np.ndarray:
    """[inputs]: tensor `suffix`, the group of each input.

    Raises:
        CheckpointError: another shape or type, or an input of no group.
    """
    module.expect(suffix, (inputs,), *INTEGERS)
    of_inputs = module.whole(suffix)
    outside = of_inputs[(of_inputs < 0) | (of_inputs >= groups)]
    if len(outside):
        raise module.error(suffix, f"has an input of group {int(outside[0])}, must be of 0 to {groups - 1}")
    return of_inputs
