"""The shape of a picture, and what follows from it for the text model: how many rows it has, and where they are.

A picture comes as patches, flattened squares of pixels, in one tile or in several. These functions need no pixels, so
the gateway can count a prompt's tokens, and the scheduler can plan, before a picture is decoded. No JAX here.
"""

import math
from dataclasses import dataclass

import numpy as np

from jaxengine.architecture.vision import Vision, canvases


@dataclass(frozen=True)
class PictureShape:
    """What the tower must know of a picture beside its patches.

    tiles: rows and columns of patches of each tile, in the order of the patches; within a tile they are row by row, or
        in squares as the connector merges them, if the picture processor has them so.
    height, width: in pixels, after its EXIF rotation and before any resizing.
    """

    tiles: tuple[tuple[int, int], ...]
    height: int
    width: int

    @property
    def patches(self) -> int:
        return sum(rows * columns for rows, columns in self.tiles)


def check_picture(vision: Vision, shape: PictureShape) -> None:
    """Raises ValueError where no picture for this model has such a shape; the message names field and limit."""
    if not shape.tiles or shape.height < 1 or shape.width < 1:
        raise ValueError(f"a picture needs tiles and a size, got {shape}")
    if vision.tower.tiles and math.prod(canvas(vision, shape)) != len(shape.tiles):
        tiles = math.prod(canvas(vision, shape))
        raise ValueError(f"a picture of this size has {tiles} tiles, got {len(shape.tiles)}")
    if vision.cross and not vision.tower.tiles and len(shape.tiles) != 1:
        raise ValueError(f"a picture has one tile, got {len(shape.tiles)}")
    merge, grid = vision.connector.merge, vision.tower.grid
    for tile in shape.tiles:
        if min(tile) < merge:
            raise ValueError(f"tiles must have at least {merge} rows and columns of patches, got {tile}")
        if vision.squares and (tile[0] % merge or tile[1] % merge):
            raise ValueError(f"tiles must have rows and columns of patches in multiples of {merge}, got {tile}")
        if vision.tile and tile != vision.tile:
            raise ValueError(f"tiles must have {vision.tile} rows and columns of patches, got {tile}")
        if all(grid) and vision.tower.positions != "interpolated" and (tile[0] > grid[0] or tile[1] > grid[1]):
            raise ValueError(f"tiles must have at most {grid} rows and columns of patches, got {tile}")
    if vision.rows == "unpadded":
        down, across = tiling(vision, shape)
        if len(shape.tiles) != 1 + down * across:
            raise ValueError(f"a picture of this size has {1 + down * across} tiles, got {len(shape.tiles)}")


def places_of(vision: Vision, shape: PictureShape) -> int:
    """How many placeholder tokens the picture fills."""
    return 1 if vision.cross else rows_of(vision, shape)


def rows_of(vision: Vision, shape: PictureShape) -> int:
    """How many rows of the device's pool the picture takes."""
    if vision.cross:
        return len(shape.tiles)
    if vision.rows == "unpadded":
        top, bottom, left, right = unpadded(vision, shape)
        return tile_rows(vision, shape.tiles[0]) + (bottom - top) * (right - left + 1)
    return sum(tile_rows(vision, tile) for tile in shape.tiles)


def tile_rows(vision: Vision, tile: tuple[int, int]) -> int:
    """How many rows the connector makes of a tile."""
    merge = vision.connector.merge
    if vision.resampler is not None:
        return vision.resampler.latents
    if merge > 1:
        return (tile[0] // merge) * (tile[1] // merge)
    return tile[0] * tile[1] + vision.tower.class_token - vision.skipped


def positions_of(vision: Vision, shape: PictureShape) -> np.ndarray:
    """i32 [3, rows]: time, row and column of each row of the picture, counted from where it begins (M-RoPE: Wang et al.
    2024, arXiv 2409.12191).
    """
    merge = vision.connector.merge
    grids = [np.indices((rows // merge, columns // merge), np.int32) for rows, columns in shape.tiles]
    flat = [np.stack([np.zeros(grid[0].size, np.int32), *grid.reshape(2, -1)]) for grid in grids]
    return np.concatenate(flat, axis=1)


def canvas(vision: Vision, shape: PictureShape) -> tuple[int, int]:
    """How many tiles the picture is cut into downwards and across, where all of them see each other."""
    return fitting_canvas(shape.height, shape.width, vision.tile[0] * vision.patch, vision.tower.tiles)


def fitting_canvas(height: int, width: int, tile: int, most: int) -> tuple[int, int]:
    """The same for a picture of `height` × `width` pixels, of up to `most` square tiles of `tile` pixels on a side.

    Of the canvases in which it need not be made smaller the one in which it is enlarged least, else the one in which
    it shrinks least; of several the one with fewest tiles (Llama 3.2 Vision, as transformers'
    `get_optimal_tiled_canvas`).
    """
    scales = {each: min(each[0] * tile / height, each[1] * tile / width) for each in canvases(most)}
    enlarged = [each for each in scales.values() if each >= 1]
    best = min(enlarged) if enlarged else max(scales.values())
    return min((each for each, found in scales.items() if found == best), key=math.prod)


def tiling(vision: Vision, shape: PictureShape) -> tuple[int, int]:
    """How many tiles the picture is cut into downwards and across, the first tile aside, which shows it whole.

    Of the pinpoints the one in which the picture has most pixels without being enlarged, then the one with the least
    padding around it (LLaVA-NeXT, as transformers' `select_best_resolution` has it).
    """

    def quality(pinpoint: tuple[int, ...]) -> tuple[int, int]:
        height, width = pinpoint
        scale = min(width / shape.width, height / shape.height)
        pixels = min(int(shape.width * scale) * int(shape.height * scale), shape.width * shape.height)
        return pixels, pixels - height * width

    height, width = max(vision.pinpoints, key=quality)
    rows, columns = vision.tile
    return height // (rows * vision.patch), width // (columns * vision.patch)


def unpadded(vision: Vision, shape: PictureShape) -> tuple[int, int, int, int]:
    """The rows and columns of patches, first and behind the last of each, that are no padding, of the tiles behind the
    first as one picture (transformers' `unpad_image`, its rounding included).
    """
    down, across = tiling(vision, shape)
    rows, columns = down * vision.tile[0], across * vision.tile[1]
    if shape.width / shape.height > columns / rows:
        padding = (rows - int(round(shape.height * (columns / shape.width), 7))) // 2
        return padding, rows - padding, 0, columns
    padding = (columns - int(round(shape.width * (rows / shape.height), 7))) // 2
    return 0, rows, padding, columns - padding
