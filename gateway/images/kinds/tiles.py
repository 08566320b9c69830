"""Tiles of one size: how large the settings make them, and their pixels as patches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.images.settings import Settings, UnusableProcessor, size_of


def patch_edge(settings: Settings, default: int) -> int:
    """Pixels on the side of the tower's patches, by config.json."""
    value = settings.vision.get("patch_size", default)
    edges = set(value) if isinstance(value, list) else {value}
    if len(edges) != 1 or not isinstance(edge := edges.pop(), int) or edge < 1:
        raise UnusableProcessor(f"config.json: vision_config.patch_size must be one number, not {value!r}")
    return edge


def tile_of(image: Mapping[str, Any], size: Any, crop: Any = None, *, square: bool) -> tuple[int, int]:
    """Height and width in pixels of what a processor makes of any picture, by its settings.

    Args:
        size, crop: the class's defaults; without `crop` it does not crop.
        square: its `default_to_square`.

    Raises:
        UnusableProcessor: pictures keep different sizes.
    """
    if crop is not None and image.get("do_center_crop") is not False:
        return height_width(size_of(given(image, "crop_size", crop), square=True, name="crop_size"), "crop_size")
    if image.get("do_resize") is False:
        raise UnusableProcessor("preprocessor_config.json: do_resize must be true")
    square = bool(given(image, "default_to_square", square))
    return height_width(size_of(given(image, "size", size), square=square), "size")


def given(image: Mapping[str, Any], name: str, default: Any) -> Any:
    """A setting; null counts as absent, as transformers has it."""
    value = image.get(name)
    return default if value is None else value


def height_width(size: Mapping[str, int], name: str) -> tuple[int, int]:
    if "height" not in size or "width" not in size:
        raise UnusableProcessor(f"preprocessor_config.json: {name} must have height and width, not {dict(size)}")
    return size["height"], size["width"]


def grid_of(tile: tuple[int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of whole patches in a tile; what is left over at its end is no patch."""
    rows, columns = tile[0] // patch, tile[1] // patch
    if not rows or not columns:
        raise UnusableProcessor(f"preprocessor_config.json: tiles of {tile} pixels have no patch of {patch}")
    return rows, columns


def patches_of(tiles: Sequence[np.ndarray], grids: Sequence[tuple[int, int]], patch: int) -> np.ndarray:
    """Pixels, T of [3, H, W], → f32 [N, 3·patch·patch]: of each tile its grid of patches by rows, (channel, y, x)."""
    return np.concatenate([_cut(tile, grid, patch) for tile, grid in zip(tiles, grids, strict=True)])


def _cut(tile: np.ndarray, grid: tuple[int, int], patch: int) -> np.ndarray:
    rows, columns = grid
    pixels = np.asarray(tile, np.float32)[:, : rows * patch, : columns * patch]
    squares = pixels.reshape(-1, rows, patch, columns, patch).transpose(1, 3, 0, 2, 4)  # [rows, columns, 3, y, x]
    return squares.reshape(rows * columns, -1)
