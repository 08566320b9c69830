"""What a model has seen, as its decoder reads it: rows that stand in for the embeddings of an image's tokens."""

from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array


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
