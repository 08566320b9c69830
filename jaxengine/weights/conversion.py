"""From what was read of a matrix to what the devices hold of it: compiled functions that run on the devices.

Packed codes are unpacked here and not while they are read: half the bytes cross to a GPU, and XLA uses all cores.
"""

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.ops.packing import WORDS, codes_of_words
from jaxengine.ops.weight import Weight, WeightLayout
from jaxengine.weights.quantization import group_weight, quantize_weight

ROWS = 64  # of a matrix that are restored at once


def quantized(array: Array | Weight, target: Weight) -> Weight:
    """A weight of the layout and the sharding of `target`.

    Args:
        array: floats or what a checkpoint stores, as the parameter table has it.
    """
    weight: Weight = _compiled(target.layout, jax.tree.map(lambda each: each.sharding, target))(array)
    return weight


@cache
def _compiled(layout: WeightLayout, shardings: Any) -> Any:
    """Layers share their shapes, so a model of any depth compiles a handful of these."""
    return jax.jit(partial(make_weight, layout), out_shardings=shardings)


def make_weight(layout: WeightLayout, array: Array | Weight) -> Weight:
    """`quantized`, on the devices that `array` is on. A stack in groups is made one by one: temporaries, many times as
    large as 4 bits, are then those of one matrix.
    """
    if layout.grouped and layout.stacked:
        if isinstance(array, Weight):
            array = replace(array, layout=replace(array.layout, stacked=0))
        matrices: Weight = jax.lax.map(partial(make_weight, replace(layout, stacked=0)), array)
        return replace(matrices, layout=layout)
    plain = replace(layout, grouped=0, plane=0)
    if not isinstance(array, Weight):
        weight = quantize_weight(plain, array)
    elif array.layout.format == layout.format:
        weight = unpacked(array)
    else:
        weight = requantized(plain, array)
    return group_weight(layout, weight) if layout.grouped else weight


def unpacked(weight: Weight) -> Weight:
    """`weight` with values, sorted where its format is ordered, if it has a checkpoint's words in their place."""
    format = weight.layout.format
    if format is None or weight.values.dtype != WORDS:
        return weight
    values = _codes(weight).astype(format.values) - jnp.asarray(format.offset, format.values)
    return replace(weight, values=values)


def _codes(weight: Weight) -> Array:
    """u8: the bits of each value."""
    if weight.values.dtype != WORDS:
        return jax.lax.bitcast_convert_type(weight.values, jnp.uint8)
    codes = codes_of_words(weight.values)
    if weight.order is None:
        return codes
    outputs = codes.shape[: codes.ndim - weight.layout.inputs]
    return codes.reshape(*outputs, -1)[..., weight.order].reshape(codes.shape)


def requantized(layout: WeightLayout, weight: Weight) -> Weight:
    """`weight` in the format of `layout`: restored in f32 and rounded once more, a few rows at a time.

    On a CPU, XLA would restore all elements twice, for the scales and for the values, if they were not looked up in a
    table: 4096 x 4096 of 4 bits took 17 ms of a core so, 54 ms without a table, 47 to 68 in one piece (JAX 0.10.2).
    """
    outputs = weight.values.shape[: weight.values.ndim - layout.inputs]
    made, stored = WeightLayout(format=layout.format), _looked_up(weight)
    scaling = [each for each in (weight.scales, weight.zeros) if each is not None]
    rows = tuple(each.reshape(math.prod(outputs), -1) for each in (weight.values, *scaling))

    def row(parts: tuple[Array, ...]) -> tuple[Array, Array | None]:
        values, scales, *zeros = parts
        restored = Weight(values, stored, scales, zeros[0] if zeros else None, weight.order)
        rounded = quantize_weight(made, replace(restored, values=_codes(restored)).dense(jnp.float32))
        return rounded.values, rounded.scales

    values, scales = jax.lax.map(row, rows, batch_size=ROWS)
    values = values.reshape(*outputs, *weight.values.shape[len(outputs) : -1], -1)
    return Weight(values, layout, scales.reshape(*outputs, *scales.shape[1:]))


def _looked_up(weight: Weight) -> WeightLayout:
    """The layout of one row, its values the bits of those of `weight`, of which a table has the numbers."""
    format = weight.layout.format
    assert format is not None
    if weight.values.dtype == WORDS:
        numbers = np.arange(16) - format.offset
    else:
        numbers = np.arange(256, dtype=np.uint8).view(format.values)
    table = format.table or tuple(map(float, numbers))
    return WeightLayout(format=replace(format, values="uint8", table=table))
