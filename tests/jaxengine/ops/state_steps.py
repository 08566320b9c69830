"""Steps for ops that carry states: rows of every length, each with the place of its states."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxengine.ops.batch import StepBatch

LAYERS, LAYER = 3, 1  # in the caches, and which of them a step is for


def batch_of(
    counts: Sequence[int],
    before: Sequence[int],
    places: Sequence[int],
    tokens: int,
    rows: int,
    guesses: Sequence[int] = (),
) -> StepBatch:
    """A step of `tokens` tokens and `rows` rows, ragged unless they are as many: `counts[r]` of row r, which has
    `before[r]` behind it, and states at `places[r]`. Further rows and tokens are padding. The last `guesses[r]` of a
    row are guesses.
    """
    settled = None
    if guesses:
        ends = np.cumsum(counts)
        settled = jnp.asarray(np.pad(ends - np.array(guesses), (0, rows - len(counts)), constant_values=ends[-1]))
    padding = tokens - sum(counts)
    row = np.repeat(np.arange(len(counts)), counts)
    position = np.concatenate([np.arange(count) for count in counts]) + np.array(before)[row]
    table = np.pad(places, (0, rows - len(counts)))[:, None]
    return StepBatch(
        position=jnp.asarray(np.pad(position, (0, padding)), jnp.int32),
        rope_length=jnp.zeros(tokens, jnp.int32),
        row=jnp.asarray(np.pad(row, (0, padding), constant_values=rows), jnp.int32),
        page=jnp.asarray(np.pad(np.array(places)[row], (0, padding)), jnp.int32),
        offset=jnp.zeros(tokens, jnp.int32),
        tables=jnp.asarray(table, jnp.int32),
        tokens=jnp.int32(sum(counts)),
        ragged=tokens != rows,
        layer=jnp.int32(LAYER),
        settled=settled,
    )
