"""What a model has seen, as its decoder reads it: rows that stand in for the embeddings of an image's tokens, or keys
and values for the layers that attend to pictures.
"""

from dataclasses import replace
from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from jaxengine.ops import StepBatch

FAR = 1 << 24  # tokens: more than a text has
KEYS = 256  # tables are as wide as a multiple of so many keys, which is what attention reads at once


class ImageRows(NamedTuple):
    """The rows of T tokens; those of tokens that are not `present` have no meaning."""

    present: Array  # bool [T], whether the token is one of an image
    rows: Array  # [T, (1 + deepstack)·hidden]

    @classmethod
    def of(cls, pool: Array, row: Array) -> Self:
        """`pool` [rows, (1 + deepstack)·hidden] at `row` i32 [T], negative for a token that has an embedding."""
        return cls(row >= 0, pool[jnp.maximum(row, 0)])

    def embedded(self, x: Array) -> Array:
        """The embeddings `x` [T, hidden], with those of the image's tokens replaced."""
        return jnp.where(self.present[:, None], self.rows[:, : x.shape[1]].astype(x.dtype), x)

    def behind(self, layer: int, x: Array) -> Array:
        """The residual stream `x` [T, hidden] behind `layer`, with what Qwen3-VL's deepstack adds there to the image's
        tokens: `deepstack_visual_embeds` of layers 0, 1, ….
        """
        first = (1 + layer) * x.shape[1]
        if first >= self.rows.shape[1]:
            return x
        added = self.rows[:, first : first + x.shape[1]].astype(x.dtype)
        return x + jnp.where(self.present[:, None], added, 0)


class PictureCaches(NamedTuple):
    """Keys and values of the layers that attend to pictures, [L, places, 1, K, D], and the batch that reads them."""

    caches: tuple[Array, Array]
    batch: StepBatch

    @classmethod
    def of(cls, pool: tuple[Array, Array], seen: Array, run: Array, places: int, batch: StepBatch) -> Self:
        """Token t of `batch` sees the first seen[t] rows of its row of `run` i32 [R, W]; each has so many `places`.

        Pictures lie in no order that a token's position has a place in, so all of them are ahead of it.
        """
        tables = (run[:, :, None] * places + jnp.arange(places, dtype=jnp.int32)).reshape(len(run), -1)
        tables = jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % KEYS)))
        position = batch.position - FAR
        return cls(pool, replace(batch, position=position, tables=tables, horizon=seen * places, rope_position=None))

    def embedded(self, x: Array) -> Array:
        """Pictures stand in for no token."""
        return x

    def behind(self, layer: int, x: Array) -> Array:
        return x


Images = ImageRows | PictureCaches
