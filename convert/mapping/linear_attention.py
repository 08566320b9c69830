"""Recipes of linear attention's parameters, which the table groups by key head.

Checkpoints have a tensor for queries ‖ keys ‖ values, one for gates, one for rates and one for time steps (Qwen3.5), or
two in which each key head has all of its own (Qwen3-Next). The convolution's channels are queries ‖ keys ‖ values in
both. OLMo's have a tensor for each.
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
        taps = shape[2]
        return [
            Part(tensor, (count, 1, taps), (0, first, 0), (*rows.shape, taps), 1, rows)
            for tensor, count, first, rows in _convolved_rows(linear, named)
        ]
    if kind in ("linear_decay", "linear_step"):
        return [Part(named[0], (linear.heads,), (0, 0), shape)]
    if kind in ("linear_in", "linear_gate") and len(named) == 2:
        return [_together(kind, linear, shape, named[0])]
    if kind == "linear_in":
        return [_rows_part(*each, shape[2]) for each in _convolved_rows(linear, named)]
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


def _convolved_rows(linear: LinearAttention, named: Sequence[str]) -> list[tuple[str, int, int, np.ndarray]]:
    """Of queries, keys and values: the tensor, how many rows it has, where they begin among a head's channels, and
    their rows [heads, …]. `named` is one tensor for all, or three.
    """
    keys, values = linear.key_heads * linear.key_dim, linear.heads * linear.value_dim
    sizes, firsts = (keys, keys, values), (0, linear.key_dim, 2 * linear.key_dim)
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    if len(named) == 1:
        parts = [(named[0], sum(sizes), each) for each in rows]
    else:
        parts = [(tensor, len(each), each - each[0]) for tensor, each in zip(named, rows, strict=True)]
    heads = (linear.key_heads, -1)
    return [
        (tensor, count, first, each.reshape(heads)) for (tensor, count, each), first in zip(parts, firsts, strict=True)
    ]
