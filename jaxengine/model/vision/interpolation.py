"""Learned positions stretched over a tile of any size: between the four rows of the table around each patch. No JAX.

The table's corners lie on the tile's, as with `align_corners` of PyTorch's `interpolate`, and weights are computed in
f32, as the models were trained.
"""

import numpy as np

NEIGHBOURS = 4


def neighbours(grid: tuple[int, ...], tile: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a table with a position for each place of `grid`, i32 [4, rows, columns] for a tile's patches, and
    the weight of each, f32.
    """
    (up, upper), (left, lefter) = (_along(size, count) for size, count in zip(grid, tile, strict=True))
    rows = up[:, None, :, None] * grid[1] + left[None, :, None, :]  # [2, 2, rows, columns]
    weights = upper[:, None, :, None] * lefter[None, :, None, :]
    return rows.reshape(NEIGHBOURS, *tile), weights.reshape(NEIGHBOURS, *tile)


def _along(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of `count` patches along a side, the two nearest of `size` places, i32 [2, count], and their weights."""
    place = np.arange(count, dtype=np.float32) * np.float32(size - 1) / np.float32(max(count - 1, 1))
    before = np.floor(place)
    beyond = place - before
    rows = np.stack([before, np.minimum(before + 1, size - 1)]).astype(np.int32)
    return rows, np.stack([1 - beyond, beyond])
