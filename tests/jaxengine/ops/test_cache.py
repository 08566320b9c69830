"""What a step writes before it attends: each token's key and value in its place, and nothing else."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops import AttentionBatch, paged_attention
from jaxengine.sharding import make_mesh

PAGES, PAGE_SIZE = 12, 16


def decode_batch(position: list[int], tables: np.ndarray, tokens: int) -> AttentionBatch:
    at = jnp.asarray(position)
    rows = jnp.arange(len(position))
    real = rows < tokens
    return AttentionBatch(
        position=at,
        prompt_length=at,
        row=jnp.where(real, rows, len(position)),
        page=jnp.where(real, jnp.asarray(tables)[rows, at // PAGE_SIZE], 0),
        offset=at % PAGE_SIZE,
        tables=jnp.asarray(tables),
        tokens=jnp.int32(tokens),
        ragged=False,
    )


@pytest.mark.parametrize(("cache", "largest"), [("bfloat16", 1000.0), ("float8_e4m3fn", 448.0)])
def test_a_token_attends_to_what_it_has_just_written(cache: str, largest: float) -> None:
    """An 8-bit cache holds the nearest value it can, where a plain cast would hold NaN."""
    tables = np.pad(np.array([[3], [7], [9]], np.int32), ((0, 0), (0, 7)))
    batch = decode_batch([0, 0, 0], tables, tokens=2)
    q = jnp.ones((3, 1, 2, 16), "bfloat16")
    kv = jnp.asarray([1.5, 1000.0, 5.0], "bfloat16")[:, None, None] * jnp.ones((3, 1, 16), "bfloat16")
    empty = jnp.full((PAGES, PAGE_SIZE, 1, 16), jnp.nan, cache)
    attend = paged_attention("reference", make_mesh(1))
    out, keys, values = attend(q, kv, kv, empty, empty, batch)
    np.testing.assert_array_equal(np.asarray(out[:2, 0, :, 0], np.float32), [[1.5, 1.5], [largest, largest]])
    for written in (keys, values):
        finite = np.isfinite(np.asarray(written, np.float32)).all(axis=(2, 3))
        assert list(zip(*np.nonzero(finite), strict=True)) == [(0, 0), (3, 0), (7, 0)], "padding goes to page 0"
