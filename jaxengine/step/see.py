"""What a model sees: pictures through its tower, into the pool of rows that later steps take in place of embeddings.

The pool lives on the device, [rows, (1 + deepstack)·hidden], and which of its rows are whose is the host's knowledge.
Where layers attend to pictures it is keys and values for each, [L, rows · keys of a row, 1, K, D]. A call reads several
pictures, of one request or of several; padding writes nothing.
Legend: P patches of d numbers, R rows.
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.architecture.picture import PictureShape
from jaxengine.architecture.vision import Vision
from jaxengine.model.vision.encoder import VisionEncoder
from jaxengine.model.vision.packing import EncodeShape, field_shapes, pack_pictures
from jaxengine.model.vision.picture_reader import PictureReader
from jaxengine.ops.cache import stored
from jaxengine.request.image import Image
from jaxengine.step.functions import Split

Encode = tuple[Image, np.ndarray]  # a picture, and the rows of the pool that it gets, i32 [its rows]
Pool = Array | tuple[Array, Array]
SeeArrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # patches, fields and rows, as `See` takes them


class See(Split):
    """Pictures through the tower: the pool with their rows written."""

    def __call__(
        self, shape: EncodeShape, leaves: list[Array], pool: Pool, patches: Array, fields: Array, rows: Array
    ) -> Pool:
        """patches [P, d], `fields` as `pack_pictures` made them, rows i32 [R]: where in the pool each row goes; those
        beyond it are dropped.
        """
        encoder: VisionEncoder | PictureReader = self.merged(leaves, {})
        if isinstance(encoder, PictureReader):
            size = encoder.vision.places
            places = (rows[:, None] * size + jnp.arange(size, dtype=jnp.int32)).ravel()
            keys, values = pool
            for layer, (k, v) in enumerate(encoder(shape, patches, fields)):
                keys = keys.at[layer, places, 0].set(stored(k, keys.dtype), mode="drop")
                values = values.at[layer, places, 0].set(stored(v, values.dtype), mode="drop")
            return keys, values
        assert isinstance(pool, Array)
        return pool.at[rows].set(encoder(shape, patches, fields).astype(pool.dtype), mode="drop")


def seeing(vision: Vision, shape: EncodeShape, dtype: str, pool_rows: int, encodes: Sequence[Encode]) -> SeeArrays:
    """The arguments of a call of `shape` that reads the pictures of `encodes`, which fit."""
    patches = np.zeros((shape.patches, vision.patch_values), jnp.dtype(dtype))
    targets = np.full(shape.rows, pool_rows, np.int32)
    first = row = 0
    for image, rows in encodes:
        patches[first : first + len(image.patches)] = image.patches
        targets[row : row + len(rows)] = rows
        first, row = first + len(image.patches), row + len(rows)
    return patches, _fields(vision, shape, [image.shape for image, _ in encodes]), targets


def _fields(vision: Vision, shape: EncodeShape, pictures: Sequence[PictureShape]) -> np.ndarray:
    if pictures:
        return pack_pictures(vision, shape, pictures)
    return np.zeros(sum(map(math.prod, field_shapes(vision, shape).values())), np.int32)
