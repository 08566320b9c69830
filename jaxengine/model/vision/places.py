"""Where the patches of a tile are: their places, their rows in a table of positions, the squares they make. No JAX."""

import math

import numpy as np

from jaxengine.architecture.vision import Vision
from jaxengine.model.vision.interpolation import neighbours

Tile = tuple[int, int]


def _in_order(vision: Vision, grid: np.ndarray) -> np.ndarray:
    """`grid` [..., rows, columns], a number for each patch, in the order in which patches come: [..., patches]."""
    if not vision.squares:
        return grid.reshape(*grid.shape[:-2], -1)
    k, (rows, columns) = vision.connector.merge, grid.shape[-2:]
    cut = grid.reshape(*grid.shape[:-2], rows // k, k, columns // k, k).swapaxes(-3, -2)
    return cut.reshape(*grid.shape[:-2], -1)


def tile_places(vision: Vision, tile: Tile) -> np.ndarray:
    """i32 [2, patches]: row and column of each patch."""
    return _in_order(vision, np.indices(tile, np.int32))


def table_rows(vision: Vision, tile: Tile) -> np.ndarray:
    """i32 [patches]: the row of the table of positions for each patch, class token aside."""
    (rows, columns), (down, across) = tile_places(vision, tile), vision.tower.grid
    if vision.tower.positions == "bucketised":
        rows, columns = _buckets(tile[0], down)[rows], _buckets(tile[1], across)[columns]
    return rows * across + columns


def tile_neighbours(vision: Vision, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    """The four rows of the table around each patch, i32 [4, patches], and the share of each, f32."""
    rows, weights = neighbours(vision.tower.grid, tile)
    return _in_order(vision, rows), _in_order(vision, weights)


def _buckets(count: int, size: int) -> np.ndarray:
    """i32 [count]: which of `size` equal parts of a side each of `count` patches begins in.

    In f32, as the models were trained: a patch at the edge of two parts is in the one that rounding says.
    """
    step = 1 / size
    edges = (step + np.arange(math.ceil((1 - step) / step)) * step).astype(np.float32)
    begin = np.arange(count, dtype=np.float32) * np.float32(1 / count)
    return np.searchsorted(edges, np.minimum(begin, np.float32(1 - 1e-6)), side="right").astype(np.int32)


def merged_squares(vision: Vision, tile: Tile) -> np.ndarray:
    """i32 [squares, k²]: the patches, by the order in which they come, of each square that becomes one row.

    Squares lie row by row, and so do the patches within one. Patches at the edges that fill no square are left out.
    """
    k = vision.connector.merge
    down, across = tile[0] // k, tile[1] // k
    if vision.squares:
        return np.arange(down * across * k * k, dtype=np.int32).reshape(-1, k * k)
    grid = np.arange(tile[0] * tile[1], dtype=np.int32).reshape(tile)[: down * k, : across * k]
    return grid.reshape(down, k, across, k).swapaxes(1, 2).reshape(-1, k * k)
