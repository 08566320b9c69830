"""What attention needs to know of a step."""

import dataclasses
from typing import NamedTuple

import jax
from jax import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionBatch:
    """T tokens in R rows, each row a contiguous run of one sequence's tokens. Padding tokens write to page 0.

    `ragged` is static: without it every row is exactly one token, token t being row t.
    """

    position: Array  # [T] i32, in the token's own sequence
    prompt_length: Array  # [T] i32, of the token's sequence
    row: Array  # [T] i32, not decreasing; R for padding
    page: Array  # [T] i32, where the token's key and value go
    offset: Array  # [T] i32, in that page
    tables: Array  # [R, W] i32, the pages of each row's sequence in order
    tokens: Array  # [] i32, how many of the T tokens are real
    ragged: bool = dataclasses.field(metadata={"static": True})


class HeadTerms(NamedTuple):
    """What a layer adds to the scores head by head, where its model does."""

    slopes: Array | None = None  # f32 [K, G], ALiBi's
    sinks: Array | None = None  # f32 [K, G], logits without a value
