"""Where the tokens of a prompt with pictures stand for a rope with axes (M-RoPE: Wang et al. 2024, arXiv 2409.12191).

A token of text has one position, the same on every axis. The rows of a picture share the time at which it begins, and
have its rows and columns added to it. What follows goes on behind the largest of these, so a text behind a picture is
nearer to its beginning than its tokens are many. No JAX here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxengine.architecture.picture import PictureShape, positions_of
from jaxengine.architecture.vision import Vision


class RopePositions(NamedTuple):
    """Of a whole prompt of n tokens."""

    position: np.ndarray  # i32 [3, n]: time, row and column
    shift: int  # what is added to the index of each later token; never positive


def rope_positions(vision: Vision, length: int, pictures: Sequence[tuple[int, PictureShape]]) -> RopePositions:
    """Of a prompt of `length` tokens, in which the rows of each picture begin at an index; in order, without overlap.

    Raises:
        ValueError: a picture has no room before the next one, or before the end.
    """
    parts, index, position = [], 0, 0
    for first, shape in [*pictures, (length, None)]:
        if first < index:
            raise ValueError(f"a picture whose rows end at token {index} must end by token {first}")
        parts.append(np.tile(np.arange(position, position + first - index, dtype=np.int32), (3, 1)))
        position += first - index
        if shape is None:
            break
        rows = positions_of(vision, shape)
        parts.append(position + rows)
        index, position = first + rows.shape[1], position + int(rows.max()) + 1
    return RopePositions(np.concatenate(parts, axis=1), position - length)
