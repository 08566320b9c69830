"""Images for the fake model: pictures without pixels, whose rows are numbers that their digests say.

Rows stand in for an image's tokens. Where layers attend to images, one token stands for an image of several tiles, each
of which has a row, and every token is what it is and what it sees.
"""

import random
from collections.abc import Sequence as Ids

import numpy as np

from jaxengine.architecture.picture import PictureShape
from jaxengine.request.image import Image

IMAGE = 8  # the id in whose places rows stand; the fake model samples no such id
BETWEEN = 9  # what stands between two rows of one image
MOST_ROWS = 6  # of an image
MOST_TILES = 3  # of one that layers attend to
PICTURES = 3  # of each number of rows

Prompt = tuple[list[int], tuple[Image, ...]]


def row_value(digest: bytes, row: int) -> int:
    """What a row of an image is on the fake device."""
    return hash((int.from_bytes(digest, "little"), row, IMAGE))


def span(rows: int, broken: bool) -> list[int]:
    """The ids of an image of so many rows, with something between them if `broken`."""
    return ([IMAGE, BETWEEN] * rows)[:-1] if broken else [IMAGE] * rows


def image_at(offset: int, ids: Ids[int], picture: int) -> Image:
    """An image whose span of the prompt has `ids`. It has half as many patches again as rows."""
    rows = sum(token == IMAGE for token in ids)
    patches = rows + rows // 2
    digest = bytes([picture, len(ids), rows]) + bytes(29)
    return Image(digest, offset, len(ids), PictureShape(((1, patches),), 1, 1), np.zeros((patches, 1), np.float32))


def tiled_image_at(offset: int, tiles: int, picture: int) -> Image:
    """An image of one token, of so many tiles. It has as many patches."""
    digest = bytes([picture, tiles]) + bytes(30)
    return Image(digest, offset, 1, PictureShape(((1, 1),) * tiles, 1, 1), np.zeros((tiles, 1), np.float32))


def illustrated(text: Ids[int], chance: random.Random, behind: Prompt = ([], ()), *, cross: bool = False) -> Prompt:
    """`behind`, and then `text` with a few images in it; with `cross` one behind another, as often as not."""
    ids, images = [*behind[0]], [*behind[1]]
    for token in text:
        ids.append(token)
        while cross and chance.random() < (0.5 if ids[-1] == IMAGE else 0.15):
            images.append(tiled_image_at(len(ids), chance.choice([1, 1, 2, MOST_TILES]), chance.randrange(PICTURES)))
            ids.append(IMAGE)
        if not cross and chance.random() < 0.15:
            added = span(chance.choice([1, 1, 2, 3, MOST_ROWS, MOST_ROWS]), broken=chance.random() < 0.3)
            images.append(image_at(len(ids), added, chance.randrange(PICTURES)))
            ids += added
    return ids, tuple(images)


def beginning(prompt: Prompt, length: int, chance: random.Random, *, cross: bool = False) -> Prompt:
    """The first `length` ids or fewer, so that no image is cut; one of the images may be another picture."""
    ids, images = prompt
    length = min([length, *(each.offset for each in images if each.offset < length < each.end)])
    kept = [each for each in images if each.end <= length]
    if kept and chance.random() < 0.3:
        changed = chance.randrange(len(kept))
        kept[changed] = _changed(kept[changed], ids, chance.randrange(PICTURES), cross)
    return list(ids[:length]), tuple(kept)


def _changed(old: Image, ids: Ids[int], picture: int, cross: bool) -> Image:
    if cross:
        return tiled_image_at(old.offset, len(old.shape.tiles), picture)
    return image_at(old.offset, ids[old.offset : old.end], picture)


def seen(images: Ids[Image], ids: Ids[int]) -> dict[int, int]:
    """What stands in for the tokens of `ids` that are places of images, by position."""
    values = dict[int, int]()
    for image in images:
        places = [position for position in range(image.offset, image.end) if ids[position] == IMAGE]
        values |= {position: row_value(image.digest, row) for row, position in enumerate(places)}
    return values


def attended(images: Ids[Image], position: int) -> list[int]:
    """The rows that the token at `position` sees where layers attend to images: of those that follow each other without
    a token between them, and are the last to have begun, all that have.
    """
    rows, end = list[int](), 0
    for image in images:
        if image.offset <= position:
            rows = rows if image.offset == end else []
            rows = rows + [row_value(image.digest, row) for row in range(len(image.shape.tiles))]
            end = image.end
    return rows


def beside(token: int, rows: Ids[int]) -> int:
    """What a token is that sees these rows."""
    return hash((token, *rows)) if rows else token
