"""Layers that attend to pictures: each token sees the pictures of its run that have begun, and nothing else, whatever
its position, in both back ends.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.model.image_rows import PictureCaches
from jaxengine.ops import BACKENDS, AttentionSpec, StepBatch

PLACES, HEADS, GROUP, DIM, TILES = 5, 2, 2, 16, 40  # of a tile, and of the pool
# Of each row: the pool's tiles that its tokens see, and how many of these each does.
RAGGED: tuple[tuple[list[int], list[int]], ...] = (
    ([3, 9, 1], [0, 0, 2, 2, 3, 3, 3]),
    ([7], [1]),
    ([], [0, 0]),
    ([*range(10, 38)], [28] * 20),
    ([2], [0, 1, 1]),
)
SINGLE = tuple((run, seen[-1:]) for run, seen in RAGGED)


def batch_of(rows: tuple[tuple[list[int], list[int]], ...], tokens: int, ragged: bool) -> tuple[StepBatch, ...]:
    counts = [len(seen) for _, seen in rows]
    numbers = np.full(tokens, len(rows), np.int32)
    numbers[: sum(counts)] = np.repeat(np.arange(len(rows)), counts)
    position = np.zeros(tokens, np.int32)
    position[: sum(counts)] = np.concatenate([np.arange(17 * i, 17 * i + n) for i, n in enumerate(counts)])
    zeros = jnp.zeros(tokens, jnp.int32)
    text = StepBatch(
        position=jnp.asarray(position),
        rope_length=zeros,
        row=jnp.asarray(numbers),
        page=zeros,
        offset=zeros,
        tables=jnp.zeros((len(rows), 8), jnp.int32),
        tokens=jnp.asarray(sum(counts), jnp.int32),
        ragged=ragged,
    )
    return (text,)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("rows", [RAGGED, SINGLE], ids=["ragged", "single"])
def test_a_token_sees_the_pictures_of_its_run(rows: tuple[tuple[list[int], list[int]], ...], backend: str) -> None:
    generator = np.random.default_rng(0)
    ragged = rows is RAGGED
    tokens = 48 if ragged else len(rows)
    (text,) = batch_of(rows, tokens, ragged)
    pool = [generator.normal(size=(TILES * PLACES, 1, HEADS, DIM)).astype(np.float32) for _ in range(2)]
    run, seen = np.zeros((len(rows), 30), np.int32), np.zeros(tokens, np.int32)
    for i, (own, _) in enumerate(rows):
        run[i, : len(own)] = own
    known = [n for _, each in rows for n in each]
    seen[: len(known)] = known
    caches = PictureCaches.of(
        (jnp.asarray(pool[0])[None], jnp.asarray(pool[1])[None]), jnp.asarray(seen), jnp.asarray(run), PLACES, text
    )
    q = generator.normal(size=(tokens, HEADS, GROUP, DIM)).astype(np.float32)
    read = BACKENDS[backend].read if backend == "reference" else partial(BACKENDS[backend].read, interpret=True)
    found = np.asarray(read(jnp.asarray(q), *caches.caches, batch=caches.batch, spec=AttentionSpec()))
    row = np.asarray(text.row)
    for t in range(len(known)):
        if not seen[t]:
            continue  # whose branch the layer leaves out
        places = (run[row[t], : seen[t], None] * PLACES + np.arange(PLACES)).ravel()
        keys, values = (each[places, 0] for each in pool)  # [S, K, D]
        scores = np.einsum("kgd,skd->kgs", q[t], keys) / DIM**0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = np.einsum("kgs,skd->kgd", weights / weights.sum(-1, keepdims=True), values)
        np.testing.assert_allclose(found[t], expected, atol=2e-5)
