"""Which rows of the device's pool hold which image, and who reads them.

An image takes as many rows as it has places in a prompt, wherever there are any: they are named one by one, so nothing
is fragmented. While nobody holds an image its rows stay, until others need them: the image unused for longest goes
first. What was encoded once is found again by digest and shape. No JAX: this file never sees an array of the device.
"""

from collections.abc import Iterable

import numpy as np

from jaxengine.architecture.picture import PictureShape
from jaxengine.request.image import EncodedImage

Key = tuple[bytes, PictureShape]


class ImagePool:
    """Reference-counted rows 0 … total-1 by image."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.reset()

    def reset(self) -> None:
        """Nothing is encoded, and nobody holds anything: the device's rows are gone."""
        self.blank = list(range(self.total - 1, -1, -1))  # rows without an image
        self.images: dict[Key, EncodedImage] = {}  # that can be found, the one unused for longest first

    @property
    def available(self) -> int:
        """Rows that nobody holds."""
        return len(self.blank) + sum(len(each.rows) for each in self.images.values() if not each.holders)

    def is_held(self, key: Key) -> bool:
        """Whether somebody reads the image, so that another reader takes no row from anyone."""
        return key in self.images and self.images[key].holders > 0

    def hold(self, key: Key) -> EncodedImage | None:
        """The image, with one holder more; None where it is not there."""
        image = self.images.pop(key, None)
        if image is not None:
            self.images[key] = image
            image.holders += 1
        return image

    def place(self, key: Key, count: int) -> EncodedImage:
        """An image that is not there, of `count` rows, with one holder. Raises ValueError where fewer are available."""
        if count > self.available:
            raise ValueError(f"an image of {count} rows, {self.available} are available")
        while len(self.blank) < count:
            self._evict(next(key for key, each in self.images.items() if not each.holders))
        rows = [self.blank.pop() for _ in range(count)]
        self.images[key] = EncodedImage(np.array(rows, np.int32))
        return self.images[key]

    def release(self, image: EncodedImage) -> None:
        """It has one holder less. Its rows stay as they are if it can be found."""
        image.holders -= 1
        if not image.holders and not image.found:
            self.blank += image.rows.tolist()

    def forget(self, keys: Iterable[Key]) -> None:
        """Let nobody find these images any more: their rows cannot be trusted."""
        for key in keys:
            if (image := self.images.pop(key, None)) is not None:
                image.found = False
                if not image.holders:
                    self.blank += image.rows.tolist()

    def _evict(self, key: Key) -> None:
        self.blank += self.images.pop(key).rows.tolist()
