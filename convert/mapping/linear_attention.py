"""Recipes of linear attention's parameters, which the table groups by key head.

Checkpoints have a tensor for queries ‖ keys ‖ values, one for gates, one for rates and one for time steps (Qwen3.5), or
two in which each key head has all of its own (Qwen3-Next). The convolution's channels are queries ‖ keys ‖ values in
both. OLMo's have a tensor for each. Value heads follow each other by key head or, in turn, one of each key head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convert.mapping.part import Part
from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.recurrence import LinearAttention


@dataclass(frozen=True)
class LinearParts:
    """in_turn: the first value heads of all key heads stand in front of the second ones, as llama.cpp repeats keys."""

    linear: LinearAttention
    in_turn: bool = False

    def of(self, kind: str, parameter: Parameter, named: Sequence[str]) -> list[Part]:
        """The parts of parameter `kind`, "linear_…", in the tensors `named`; where what a key head has lies together,
        "linear_in" and "linear_gate" name the same tensor twice.
        """
        shape, linear = parameter.shape, self.linear
        if kind == "linear_conv":  # stored with an axis of one input channel
            taps = shape[2]
            return [
                Part(tensor, (count, 1, taps), (0, first, 0), (*rows.shape, taps), 1, rows)
                for tensor, count, first, rows in self._convolved_rows(named)
            ]
        if kind in ("linear_decay", "linear_step"):
            return [Part(named[0], (linear.heads,), (0, 0), shape, rows=self._heads)]
        if kind in ("linear_in", "linear_gate") and len(named) == 2:
            return [_together(kind, linear, shape, named[0])]
        if kind == "linear_in":
            return [_rows_part(*each, shape[2]) for each in self._convolved_rows(named)]
        if kind == "linear_rates" and len(named) > 1:
            return [
                _rows_part(tensor, linear.heads, i * linear.group, self._heads, shape[2])
                for i, tensor in enumerate(named)
            ]
        values, width = self._values if self.in_turn else None, linear.heads * linear.value_dim
        if kind == "linear_gate":
            return [Part(named[0], (width, shape[3]), (0,) * 4, shape, 1, values)]
        if kind == "linear_out":
            return [Part(named[0], (shape[0], width), (0,) * 4, shape, 3, columns=values)]
        stored = shape if kind == "linear_norm" else (shape[0] * shape[1], shape[2])
        return [Part(named[0], stored, (0,) * len(shape), shape, parameter.inputs)]

    @property
    def _heads(self) -> np.ndarray:
        """[key_heads, group]: the place of each value head."""
        numbers, shape = np.arange(self.linear.heads), (self.linear.key_heads, self.linear.group)
        return numbers.reshape(shape[::-1]).T if self.in_turn else numbers.reshape(shape)

    @property
    def _values(self) -> np.ndarray:
        """[key_heads, group, value_dim]: the place of each of their elements."""
        size = self.linear.value_dim
        return self._heads[..., None] * size + np.arange(size)

    def _convolved_rows(self, named: Sequence[str]) -> list[tuple[str, int, int, np.ndarray]]:
        """Of queries, keys and values: the tensor, how many rows it has, where they begin among a head's channels, and
        their rows [key_heads, …]. `named` is one tensor for all, or three.
        """
        linear = self.linear
        keys = np.arange(linear.key_heads * linear.key_dim).reshape(linear.key_heads, -1)
        values = self._values.reshape(linear.key_heads, -1)
        each, firsts = (keys, keys, values), (0, linear.key_dim, 2 * linear.key_dim)
        if len(named) > 1:
            return [(tensor, rows.size, first, rows) for tensor, rows, first in zip(named, each, firsts, strict=True)]
        total, behind = 2 * keys.size + values.size, (0, keys.size, 2 * keys.size)
        return [(named[0], total, first, rows + start) for rows, start, first in zip(each, behind, firsts, strict=True)]


def _together(kind: str, linear: LinearAttention, shape: tuple[int, ...], tensor: str) -> Part:
    """Of a tensor in which each key head has its query, its key, and values and gates of its value heads."""
    each = linear.convolved + linear.group * linear.value_dim
    rows = np.arange(linear.key_heads * each).reshape(linear.key_heads, each)
    mine = rows[:, : linear.convolved] if kind == "linear_in" else rows[:, linear.convolved :].reshape(shape[:-1])
    return Part(tensor, (rows.size, shape[-1]), (0,) * len(shape), shape, 1, mine)


def _rows_part(tensor: str, count: int, first: int, rows: np.ndarray, width: int) -> Part:
    """`rows` [heads, …] of a matrix [count, width], from the row `first` of each head on."""
    return Part(tensor, (count, width), (0, first, 0), (*rows.shape, width), 1, rows)
