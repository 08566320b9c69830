"""What the encoder must know of the pictures of one call, as one array of integers: computed on the host, sent at once.

A call has a fixed shape. Several pictures lie in it one behind the other; what is left is padding, whose tokens see
nothing and whose rows mean nothing. Which table row is a patch's, which patches become one row, and which row of the
connector's lies where, all are indices made here, so that the device computes no layout. No JAX here.

Legend: P patches, S segments (tiles), T tokens of the tower (patches, and a class token for each segment), M rows of
the connector, R rows for the text model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxengine.architecture.picture import PictureShape, rows_of, tile_rows, tiling, unpadded
from jaxengine.architecture.vision import Vision
from jaxengine.model.vision.interpolation import NEIGHBOURS
from jaxengine.model.vision.places import merged_squares, table_rows, tile_neighbours, tile_places
from jaxengine.model.vision.tiled_packing import picture_tokens, tiled_fields
from jaxengine.model.vision.windows import most_windows, window_count, windows_of

LEAST = 256  # patches of the smallest shape, of pictures of any size
RESAMPLED_TILE = 256  # patches of a tile with a resampler, on average; Idefics 2's have at least 169
RESAMPLED_TILES = 5  # of a picture, which is shown whole and in quarters
SMALLEST_PICTURE = 64  # patches, on average: more pictures than patches / this go into another call


@dataclass(frozen=True, order=True)
class EncodeShape:
    """The sizes of one call: how many patches, segments and rows there is room for, and windows in a tower with any."""

    patches: int
    segments: int
    rows: int
    windows: int = 0

    def holds(self, need: "EncodeShape") -> bool:
        enough = need.patches <= self.patches and need.segments <= self.segments and need.rows <= self.rows
        return enough and need.windows <= self.windows


def needed(vision: Vision, pictures: Sequence[PictureShape]) -> EncodeShape:
    """The least shape that holds these pictures together. Where tiles see each other a picture is one segment."""
    if vision.tower.tiles:
        tiles = sum(len(picture.tiles) for picture in pictures)
        return EncodeShape(sum(picture.patches for picture in pictures), len(pictures), tiles)
    return EncodeShape(
        sum(picture.patches for picture in pictures),
        sum(len(picture.tiles) for picture in pictures),
        sum(rows_of(vision, picture) for picture in pictures),
        sum(window_count(vision, tile) for picture in pictures for tile in picture.tiles),
    )


def encode_shapes(vision: Vision, largest: EncodeShape) -> tuple[EncodeShape, ...]:
    """The shapes to compile, smallest first; the last holds `largest`, the most that is encoded in one call.

    Tiles of one size come in powers of two, and as many as are asked for: LLaVA-NeXT cuts most photographs into the
    five that it has at most, and eight would take 1.6 times as long. Pictures of any size have steps of a factor of
    four in patches.
    """
    if vision.tower.tiles:
        tiles = vision.tower.tiles
        each = math.prod(vision.tile) * tiles
        shapes = [EncodeShape(n * each, n, n * tiles) for n in _powers(1, largest.segments, 2)]
    elif vision.tile:
        each = math.prod(vision.tile)
        counts = _powers(1, largest.segments, 2)
        shapes = [EncodeShape(n * each, n, _most_rows(vision, n * each, n)) for n in counts]
    else:
        sizes = _powers(min(LEAST, largest.patches), largest.patches, 4)
        shapes = [_of_any_size(vision, n) for n in sizes]
    last = shapes[-1]
    shapes[-1] = replace(
        last,
        segments=max(last.segments, largest.segments),
        rows=max(last.rows, largest.rows),
        windows=max(last.windows, largest.windows),
    )
    return tuple(shapes)


def _of_any_size(vision: Vision, patches: int) -> EncodeShape:
    """The shape of a call with pictures of so many patches, which may be few or many pictures."""
    if vision.resampler is not None:  # whose work grows with the segments, also with those that are not there
        segments = max(RESAMPLED_TILES, patches // RESAMPLED_TILE)
        return EncodeShape(patches, segments, _most_rows(vision, patches, segments))
    segments = max(1, patches // SMALLEST_PICTURE)
    return EncodeShape(patches, segments, _most_rows(vision, patches, patches), most_windows(vision, patches))


def _powers(first: int, last: int, factor: int) -> list[int]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(sizes[-1] * factor, last))
    return sizes


def _most_rows(vision: Vision, patches: int, segments: int) -> int:
    """The most rows that pictures of so many patches, in so many tiles, can have."""
    if vision.cross:
        return segments
    if vision.resampler is not None:
        return segments * vision.resampler.latents
    if vision.rows == "unpadded":
        return patches + segments * vision.tile[0]
    if vision.connector.merge > 1:
        return patches // vision.connector.merge**2
    return patches + segments * max(0, vision.tower.class_token - vision.skipped)


def field_shapes(vision: Vision, shape: EncodeShape) -> dict[str, tuple[int, ...]]:
    """The arrays that one call's fields hold, in order.

    lengths: tokens of each segment. windows: of each window. source: the patch that each token is, or P for the class
    token. position: its row of the table of positions; the four around it where these are interpolated, whose shares
    are in weight, as the bits of f32. place: its row and column. merge: the tokens of each row of the connector. rows:
    which of these each row is, or M for the learned one.
    """
    tower = vision.tower
    tokens = tower_tokens(vision, shape)
    made: dict[str, tuple[int, ...]]
    if tower.tiles:
        made = {"lengths": (2 * shape.segments,), **dict.fromkeys(("source", "position", "tile"), (tokens,))}
        return {**made, "merge": (connector_rows(vision, shape), 1)}
    made = {"lengths": (shape.segments,)}
    if tower.window:
        made["windows"] = (shape.windows,)
    if tower.class_token or tower.window:
        made["source"] = (tokens,)
    if tower.positions in ("learned", "bucketised"):
        made["position"] = (tokens,)
    if tower.positions == "interpolated":
        made |= {"position": (NEIGHBOURS, tokens), "weight": (NEIGHBOURS, tokens)}
    if tower.rope is not None:
        made["place"] = (2, tokens)
    made["merge"] = (connector_rows(vision, shape), vision.connector.merge**2)
    if vision.rows == "unpadded":
        made["rows"] = (shape.rows,)
    return made


def tower_tokens(vision: Vision, shape: EncodeShape) -> int:
    """T of a call."""
    if vision.tower.tiles:
        return shape.segments * picture_tokens(vision)
    return shape.patches + shape.segments * vision.tower.class_token


def connector_rows(vision: Vision, shape: EncodeShape) -> int:
    """M of a call."""
    if vision.cross:
        return shape.rows * vision.tower.tokens
    return shape.patches if vision.rows == "unpadded" or vision.resampler else shape.rows


def unpack(vision: Vision, shape: EncodeShape, fields: Any) -> dict[str, Any]:
    """The arrays of `field_shapes`, of the fields that `pack_pictures` made."""
    made, first = {}, 0
    for name, sizes in field_shapes(vision, shape).items():
        last = first + math.prod(sizes)
        made[name] = fields[first:last].reshape(sizes)
        first = last
    return made


def pack_pictures(vision: Vision, shape: EncodeShape, pictures: Sequence[PictureShape]) -> np.ndarray:
    """i32 fields of a call with these pictures; their rows come in the same order, without gaps.

    Raises:
        ValueError: they do not fit `shape`.
    """
    if not shape.holds(need := needed(vision, pictures)):
        raise ValueError(f"pictures that need {need} do not fit {shape}")
    tiles = [tile for picture in pictures for tile in picture.tiles]
    if vision.tower.tiles:
        parts = tiled_fields(vision, shape.patches, pictures)
    else:
        parts = _tokens(vision, shape, tiles) | {"merge": _merge(vision, tiles)}
    if vision.rows == "unpadded":
        parts["rows"] = _unpadded_rows(vision, shape, pictures)
    shapes = field_shapes(vision, shape)
    return np.concatenate([_padded(parts[name], sizes).ravel() for name, sizes in shapes.items()])


def _padded(values: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """i32 `sizes`: `values`, and zeros behind."""
    whole = np.zeros(sizes, np.int32)
    whole[tuple(slice(size) for size in values.shape)] = values
    return whole


def _tokens(vision: Vision, shape: EncodeShape, tiles: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
    """What there is for every token of the tower."""
    first = int(vision.tower.class_token)
    counts = np.array([rows * columns for rows, columns in tiles], np.int32)
    patches = np.split(np.arange(counts.sum(), dtype=np.int32), np.cumsum(counts)[:-1])
    cls = np.full(first, shape.patches, np.int32)
    made = {
        "lengths": counts + first,
        "source": np.concatenate([part for own in patches for part in (cls, own)]),
    }
    if vision.tower.positions in ("learned", "bucketised"):
        row = np.zeros(first, np.int32)
        made["position"] = np.concatenate([p for tile in tiles for p in (row, first + table_rows(vision, tile))])
    if vision.tower.positions == "interpolated":
        around = [tile_neighbours(vision, tile) for tile in tiles]
        rows, weights = (np.concatenate(each, axis=1) for each in zip(*around, strict=True))
        made |= {"position": rows, "weight": weights.view(np.int32)}
    if vision.tower.rope is not None:
        places = [np.pad(tile_places(vision, tile), ((0, 0), (first, 0))) for tile in tiles]
        made["place"] = np.concatenate(places, axis=1)
    return _by_window(vision, tiles, made) if vision.tower.window else made


def _by_window(vision: Vision, tiles: Sequence[tuple[int, int]], made: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What there is for every token, of tokens that lie window by window within each tile."""
    cut = [windows_of(vision, tile) for tile in tiles]
    starts = np.cumsum([0, *(len(order) for order, _ in cut)])
    order = np.concatenate([start + order for start, (order, _) in zip(starts[:-1], cut, strict=True)])
    ordered = {name: values if name == "lengths" else values[..., order] for name, values in made.items()}
    return ordered | {"windows": np.concatenate([lengths for _, lengths in cut])}


def _merge(vision: Vision, tiles: Sequence[tuple[int, int]]) -> np.ndarray:
    """i32 [M, k²]: the tokens of each row of the connector."""
    cls, made, start = int(vision.tower.class_token), [], 0
    for tile in tiles:
        tokens = tile[0] * tile[1] + cls
        if vision.connector.merge > 1:
            made.append(start + cls + merged_squares(vision, tile))
        else:
            made.append(start + np.arange(vision.skipped, tokens, dtype=np.int32)[:, None])
        start += tokens
    merged = np.concatenate(made)
    if not vision.tower.window:
        return merged
    order = _by_window(vision, tiles, {"source": np.arange(start, dtype=np.int32)})["source"]
    return np.argsort(order).astype(np.int32)[merged]


def _unpadded_rows(vision: Vision, shape: EncodeShape, pictures: Sequence[PictureShape]) -> np.ndarray:
    """i32 [R]: the connector's row that each row is, or M for the learned one behind each row of patches."""
    newline, made, start = connector_rows(vision, shape), [], 0
    rows, columns = vision.tile
    each = tile_rows(vision, (rows, columns))
    for picture in pictures:
        down, across = tiling(vision, picture)
        behind = np.arange(start + each, start + each * (1 + down * across), dtype=np.int32)
        grid = behind.reshape(down, across, rows, columns).swapaxes(1, 2).reshape(down * rows, across * columns)
        top, bottom, left, right = unpadded(vision, picture)
        grid = np.pad(grid[top:bottom, left:right], ((0, 0), (0, 1)), constant_values=newline)
        made += [np.arange(start, start + each, dtype=np.int32), grid.ravel()]
        start += each * len(picture.tiles)
    return np.concatenate(made)
