"""A picture in a prompt: its patches, which tokens stand for it, and where the device keeps what it was encoded to.

The patches stay on the host, with the request: what the device has of them may be evicted, or lost with a step.
"""

import bisect
from collections.abc import Sequence as Ids
from dataclasses import dataclass

import numpy as np

from jaxengine.architecture.picture import PictureShape
from jaxengine.rpc.limits import IMAGE_DIGEST_BYTES

FOREVER = 2**31 - 1  # behind every text


@dataclass(frozen=True, eq=False)
class Image:
    """
    digest: names its pixels, how they were processed, and the caller's salt. Images of one digest share rows and pages.
    offset: index in the prompt of the first token that belongs to it.
    length: how many tokens belong to it, from its first row to its last; what separates rows counts.
    patches: f32 or bf16 [N, patch_values], N of `shape`.

    Raises:
        ValueError: the digest is not of 32 bytes, the span has no tokens, or the patches are not those of the shape.
    """

    digest: bytes
    offset: int
    length: int
    shape: PictureShape
    patches: np.ndarray

    def __post_init__(self) -> None:
        if len(self.digest) != IMAGE_DIGEST_BYTES:
            raise ValueError(f"images.digest must have {IMAGE_DIGEST_BYTES} bytes, got {len(self.digest)}")
        if self.offset < 0 or self.length < 1:
            raise ValueError(f"images.offset {self.offset} and images.length {self.length} span no tokens")
        if self.patches.ndim != 2 or len(self.patches) != self.shape.patches:
            raise ValueError(
                f"images.patches of shape {self.patches.shape} are not the {self.shape.patches} of its tiles"
            )

    @property
    def end(self) -> int:
        """Index in the prompt behind its last token."""
        return self.offset + self.length

    @property
    def key(self) -> tuple[bytes, PictureShape]:
        """What tells it from others, where rows are shared. Of one digest there should be one shape only."""
        return self.digest, self.shape


@dataclass(slots=True, eq=False)
class EncodedImage:
    """An image of the device's pool.

    rows: i32 [n], which of the pool's it has.
    holders: how many sequences are to read them.
    found: whether others may read them too; else they are blank once nobody holds them.
    """

    rows: np.ndarray
    holders: int = 1
    found: bool = True


@dataclass(slots=True, eq=False)
class PlacedImage:
    """An image of a sequence.

    places: i32 [rows], indices in the prompt of the tokens that its rows stand in for, ascending; or its one token.
    first, until: the tokens from `first` on and before `until` need it in the pool.
    encoded: what the sequence holds of it in the pool.
    """

    image: Image
    places: np.ndarray
    first: int
    until: int
    encoded: EncodedImage | None = None


def place(
    prompt: Ids[int], images: Ids[Image], token: int, cross: bool = False, forgets: int = -1
) -> list[PlacedImage]:
    """`images` of `prompt`, in which a row stands in for every `token` in an image's span.

    With `cross` layers attend to images instead: a token to those that follow each other without a token between them,
    the last such run that has begun, as far as it has (transformers' `get_cross_attention_token_mask`). The images of a
    run come into the pool together. Behind the id `forgets` a prompt's tokens see none, until the next run.
    """
    ids = np.asarray(prompt, np.int32)
    found = [(each, np.flatnonzero(ids[each.offset : each.end] == token)) for each in images]
    blind = 1 + np.flatnonzero(ids[:-1] == forgets)
    spans = _runs(images, blind.tolist()) if cross else [(each.offset, each.end) for each in images]
    return [
        PlacedImage(image, (image.offset + places).astype(np.int32), *span)
        for (image, places), span in zip(found, spans, strict=True)
    ]


def _runs(images: Ids[Image], blind: list[int]) -> list[tuple[int, int]]:
    """Of each image: where its run begins, and where the next one does or tokens are `blind`, ascending indices. What
    is answered sees what the prompt's last token does.
    """
    ends = {each.end for each in images}
    starts = [each.offset for each in images if each.offset not in ends]
    bounds = [*starts, FOREVER]
    numbers = [bisect.bisect(starts, each.offset) for each in images]
    blind = [*blind, FOREVER]
    untils = [blind[bisect.bisect(blind, each.offset)] for each in images]
    return [(bounds[n - 1], min(bounds[n], until)) for n, until in zip(numbers, untils, strict=True)]


def seen_rows(images: Ids[PlacedImage], start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What layers that attend to images see of them in a prompt's tokens from `start` on, which are of one run or in
    front of it: i32 [rows] of the pool, and how many of these, from the first on, each token sees, i32 [count].

    Raises:
        ValueError: an image has no rows.
    """
    seen = np.zeros(count, np.int32)
    rows: list[np.ndarray] = []
    for each in images:
        if each.first >= start + count or start >= each.until or each.image.offset >= start + count:
            continue
        if each.encoded is None:
            raise ValueError(f"the image at {each.image.offset} has no rows")
        rows.append(each.encoded.rows)
        seen[max(0, each.image.offset - start) :] += len(each.encoded.rows)
    return np.concatenate(rows) if rows else np.empty(0, np.int32), seen


def pool_rows(images: Ids[PlacedImage], start: int, count: int) -> np.ndarray:
    """i32 [count]: for each of the prompt's tokens from `start` on the pool's row that stands in for it; -1 = none.

    Raises:
        ValueError: an image has tokens there, but no rows.
    """
    found = np.full(count, -1, np.int32)
    for each in images:
        first, last = np.searchsorted(each.places, (start, start + count))
        if first == last:
            continue
        if each.encoded is None:
            raise ValueError(f"the image at {each.image.offset} has no rows")
        found[each.places[first:last] - start] = each.encoded.rows[first:last]
    return found
