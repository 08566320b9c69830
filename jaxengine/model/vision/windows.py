"""The windows of a tile: squares of patches whose tokens see each other in most layers of a tower. No JAX here."""

import math

import numpy as np

from jaxengine.architecture.vision import Vision
from jaxengine.model.vision.places import tile_places

LEAST = 2  # squares that become one row in a window, on average: smaller windows go into another call


def windows_of(vision: Vision, tile: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The patches of a tile window by window, i32 [patches], and how many are in each, i32 [windows].

    Windows begin at the tile's corner; those at the other edges are as small as what is left.
    """
    rows, columns = tile_places(vision, tile) // vision.tower.window
    number = rows * math.ceil(tile[1] / vision.tower.window) + columns  # [patches]
    return np.argsort(number, kind="stable").astype(np.int32), np.bincount(number).astype(np.int32)


def window_count(vision: Vision, tile: tuple[int, int]) -> int:
    """How many windows a tile has; 0 where a tower has none."""
    side = vision.tower.window
    return math.ceil(tile[0] / side) * math.ceil(tile[1] / side) if side else 0


def most_windows(vision: Vision, patches: int) -> int:
    """For how many windows there is room in a call of so many patches."""
    return max(1, patches // (LEAST * vision.connector.merge**2)) if vision.tower.window else 0
