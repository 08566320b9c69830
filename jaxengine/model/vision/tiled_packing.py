"""What the encoder must know of pictures whose tiles all see each other (Llama 3.2 Vision). No JAX here.

A picture has as many tiles as there may be, and each is padded to a multiple of 8 tokens. As these models were trained,
a token of a tile that is there sees all of this, and what pads sees only what is there. So a picture is one segment,
its own tokens first and the padding behind, in two rows of the batch.

Legend: P patches, T tokens of the tower, N tokens of a tile without padding.
"""

from collections.abc import Sequence

import numpy as np

from jaxengine.architecture.picture import PictureShape, canvas
from jaxengine.architecture.vision import Vision

# What a token is made of, if no patch: its number is this much more than that of the last patch.
CLASS, BLACK, NOTHING, SOURCES = 0, 1, 2, 3


def picture_tokens(vision: Vision) -> int:
    """T of one picture."""
    return vision.tower.tiles * vision.tower.padded_tokens


def tiled_fields(vision: Vision, patches: int, pictures: Sequence[PictureShape]) -> dict[str, np.ndarray]:
    """i32 fields of a call with room for so many `patches`, of pictures one behind the other.

    lengths: [pictures · 2], own tokens and padding of each. source: the patch that each token is, or P + CLASS,
    P + BLACK for one of a tile that is not there, P + NOTHING for padding of a tile. position: in its tile. tile: the
    row of each token in the tables by canvas and tile. merge: [rows · N, 1], the tokens of each tile.
    """
    tower, first, start = vision.tower, 0, 0
    made: dict[str, list[np.ndarray]] = {name: [] for name in ("lengths", "source", "position", "tile", "merge")}
    for shape in pictures:
        there, count = len(shape.tiles), tower.tokens
        number = tower.tiles * (1 + tower.canvases.index(canvas(vision, shape)))
        own = first + np.arange(shape.patches).reshape(there, -1)
        own = np.concatenate([np.full((there, 1), patches + CLASS), own], axis=1)  # [tiles, N]
        absent = np.full((tower.tiles - there, count), patches + BLACK)
        absent[:, :1] = patches + CLASS
        padding = np.full((tower.tiles, tower.padded_tokens - count), patches + NOTHING)
        tiles = number + np.arange(tower.tiles)
        made["lengths"].append(np.array([own.size, absent.size + padding.size]))
        made["source"] += [own.ravel(), absent.ravel(), padding.ravel()]
        made["position"] += [np.tile(np.arange(count), tower.tiles), np.zeros(padding.size)]
        made["tile"] += [np.repeat(tiles, count), np.repeat(tiles, padding.shape[1])]
        made["merge"].append(start + np.arange(own.size))
        first, start = first + shape.patches, start + picture_tokens(vision)
    joined = {name: np.concatenate(parts).astype(np.int32) for name, parts in made.items()}
    return joined | {"merge": joined["merge"][:, None]}
