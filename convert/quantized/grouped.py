"""A matrix of codes with scales, and perhaps zero points, for groups of its inputs: what most methods come to."""

import numpy as np

from convert.formats.quantized_matrix import Box, QuantizedMatrix
from convert.quantized.method import Module
from jaxengine.architecture.weight_format import Component, WeightFormat


def grouped(
    module: Module,
    name: str,
    inputs: int,
    dtype: str,
    values: Box,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    *,
    bits: int = 8,
    of_inputs: np.ndarray | None = None,
    table: tuple[float, ...] = (),
) -> QuantizedMatrix:
    """The matrix [out, inputs] of `values` in `dtype`.

    Args:
        name: of the format, in messages. Eight bits with one scale a channel are the engine's own format.
        bits: of a value.
        scales, zeros: [out, groups]; each group has as many inputs as the others, the last one perhaps fewer.
        of_inputs: [inputs], the group of each input where groups are not consecutive.

    Raises:
        CheckpointError: an input of no group.
    """
    outputs, groups = scales.shape
    if groups == 1:
        scales = scales.astype(np.float32)
    plain = groups == 1 and zeros is None and not table
    format = WeightFormat(
        "int8" if plain and dtype == "int8" else "fp8" if plain and dtype == "float8_e4m3fn" else name,
        dtype,
        str(scales.dtype),
        None if zeros is None else str(zeros.dtype),
        0 if groups == 1 else -(-inputs // groups),
        table,
        4 if bits <= 4 else 8,
    )

    def read(component: Component, rows: slice, columns: slice) -> np.ndarray:
        if component == "values":
            return values(rows, columns)
        shared = scales if component == "scales" else zeros
        assert shared is not None
        return shared[rows, columns]

    return QuantizedMatrix((outputs, inputs), format, read, _irregular(module, inputs, groups, of_inputs))


def _irregular(module: Module, inputs: int, groups: int, of_inputs: np.ndarray | None) -> np.ndarray | None:
    """i32 [inputs], or None where all groups are consecutive and of one size."""
    if groups > inputs:
        raise module.error("", f"has {groups} groups for {inputs} inputs")
    consecutive = np.arange(inputs, dtype=np.int32) // -(-inputs // groups)
    if of_inputs is None:
        return None if inputs % groups == 0 else consecutive
    outside = of_inputs[(of_inputs < 0) | (of_inputs >= groups)]
    if of_inputs.shape != (inputs,) or len(outside):
        raise module.error("", f"has inputs of group {outside[:1].tolist()}, there are {groups} for {inputs} inputs")
    return None if inputs % groups == 0 and np.array_equal(of_inputs, consecutive) else of_inputs.astype(np.int32)
