"""Recipes of linear attention's parameters, which the table groups by key head.

Checkpoints have a tensor for queries ‖ keys ‖ values, one for gates, one for rates and one for time steps (Qwen3.5), or
two in which each key head has all of its own (Qwen3-Next). The convolution's channels are queries ‖ keys ‖ values in
both.
"""

from collections.abc import Sequence

import numpy as np

from convert.mapping.part import Part
from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.recurrence import LinearAttention


def linear_parts(kind: str, linear: LinearAttention, parameter: Parameter, named: Sequence[str]) -> list[Part]:
    """The parts of parameter `kind`, "linear_…", in the tensors `named`; where what a key head has lies together,
    "linear_in" and "linear_gate" name the same tensor twice.
    """
    shape, heads = parameter.shape, linear.key_heads
    if kind == "linear_conv":  # stored with an axis of one input channel
        count, taps = heads * linear.convolved, shape[2]
        return [
            Part(named[0], (count, 1, taps), (0, first, 0), (*rows.shape, taps), 1, rows)
            for first, rows in _convolved_rows(linear)
        ]
    if kind in ("linear_decay", "linear_step"):
        return [Part(named[0], (linear.heads,), (0, 0), shape)]
    if kind in ("linear_in", "linear_gate") and len(named) > 1:
        return [_together(kind, linear, shape, named[0])]
    if kind == "linear_in":
        count = heads * linear.convolved
        return [_rows_part(named[0], count, first, rows, shape[2]) for first, rows in _convolved_rows(linear)]
    if kind == "linear_rates" and len(named) > 1:
        rows = np.arange(linear.heads).reshape(heads, -1)
        return [_rows_part(tensor, linear.heads, i * linear.group, rows, shape[2]) for i, tensor in enumerate(named)]
    width = shape[0] if kind == "linear_norm" else int(np.prod(shape[len(shape) - parameter.inputs :]))
    stored = (width,) if kind == "linear_norm" else (int(np.prod(shape)) // width, width)
    return [Part(named[0], stored, (0,) * len(shape), shape, parameter.inputs)]


def _together(kind: str, linear: LinearAttention, shape: tuple[int, ...], tensor: str) -> Part:
    """Of a tensor in which each key head has its query, its key, and values and gates of its value heads."""
    each = linear.convolved + linear.group * linear.value_dim
    rows = np.arange(linear.key_heads * each).reshape(linear.key_heads, each)
    mine = rows[:, : linear.convolved] if kind == "linear_in" else rows[:, linear.convolved :].reshape(shape[:-1])
    return Part(tensor, (rows.size, shape[-1]), (0,) * len(shape), shape, 1, mine)


def _rows_part(tensor: str, count: int, first: int, rows: np.ndarray, width: int) -> Part:
    """`rows` [heads, …] of a matrix [count, width], from the row `first` of each head on."""
    return Part(tensor, (count, width), (0, first, 0), (*rows.shape, width), 1, rows)


def _convolved_rows(linear: LinearAttention) -> list[tuple[int, np.ndarray]]:
    """Of queries, keys and values: where they begin among a head's channels, and their rows [heads, …]."""
    heads, keys = linear.key_heads, linear.key_heads * linear.key_dim
    each = np.arange(keys).reshape(heads, -1)
    values = np.arange(linear.heads * linear.value_dim).reshape(heads, -1)
    return [(0, each), (linear.key_dim, keys + each), (2 * linear.key_dim, 2 * keys + values)]
