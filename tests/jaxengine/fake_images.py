"""Images for the fake model: pictures without pixels, whose rows are numbers that their digests say."""

import random
from collections.abc import Sequence as Ids

import numpy as np

from jaxengine.architecture.picture import PictureShape
from jaxengine.request.image import Image

IMAGE = 8  # the id in whose places rows stand; the fake model samples no such id
BETWEEN = 9  # what stands between two rows of one image
MOST_ROWS = 6  # of an image
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


def illustrated(text: Ids[int], chance: random.Random, behind: Prompt = ([], ())) -> Prompt:
    """`behind`, and then `text` with a few images in it."""
    ids, images = [*behind[0]], [*behind[1]]
    for token in text:
        ids.append(token)
        if chance.random() < 0.15:
            added = span(chance.choice([1, 1, 2, 3, MOST_ROWS, MOST_ROWS]), broken=chance.random() < 0.3)
            images.append(image_at(len(ids), added, chance.randrange(PICTURES)))
            ids += added
    return ids, tuple(images)


def beginning(prompt: Prompt, length: int, chance: random.Random) -> Prompt:
    """The first `length` ids or fewer, so that no image is cut; one of the images may be another picture."""
    ids, images = prompt
    length = min([length, *(each.offset for each in images if each.offset < length < each.end)])
    kept = [each for each in images if each.end <= length]
    if kept and chance.random() < 0.3:
        changed = chance.randrange(len(kept))
        old = kept[changed]
        kept[changed] = image_at(old.offset, ids[old.offset : old.end], chance.randrange(PICTURES))
    return list(ids[:length]), tuple(kept)


def seen(images: Ids[Image], ids: Ids[int]) -> dict[int, int]:
    """What stands in for the tokens of `ids` that are places of images, by position."""
    values = dict[int, int]()
    for image in images:
        places = [position for position in range(image.offset, image.end) if ids[position] == IMAGE]
        values |= {position: row_value(image.digest, row) for row, position in enumerate(places)}
    return values
