"""What a step writes before it attends: each token's key and value in its place, and nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jaxengine.ops import Ops, RopeTables, StepBatch
from jaxengine.ops.cache import as_floats, rotated, storage_dtype
from jaxengine.sharding import make_mesh

PAGES, PAGE_SIZE, LAYERS = 12, 16, 3


def decode_batch(position: list[int], tables: np.ndarray, tokens: int) -> StepBatch:
    at = jnp.asarray(position)
    rows = jnp.arange(len(position))
    real = rows < tokens
    return StepBatch(
        position=at,
        rope_length=at,
        row=jnp.where(real, rows, len(position)),
        page=jnp.where(real, jnp.asarray(tables)[rows, at // PAGE_SIZE], 0),
        offset=at % PAGE_SIZE,
        tables=jnp.asarray(tables),
        tokens=jnp.int32(tokens),
        ragged=False,
    )


@pytest.mark.parametrize(("cache", "largest"), [("bfloat16", 1000.0), ("float8_e4m3fn", 448.0)])
@pytest.mark.parametrize("by_bits", [False, True])
def test_a_token_attends_to_what_it_has_just_written(cache: str, largest: float, by_bits: bool) -> None:
    """An 8-bit cache holds the nearest value it can, where a plain cast would hold NaN."""
    tables = np.pad(np.array([[3], [7], [9]], np.int32), ((0, 0), (0, 7)))
    batch = decode_batch([0, 0, 0], tables, tokens=2)
    kv = jnp.asarray([1.5, 1000.0, 5.0], "bfloat16")[:, None, None, None] * jnp.ones((3, 1, 2, 16), "bfloat16")
    qkv = jnp.concatenate([jnp.ones((3, 1, 2, 16), "bfloat16"), kv], axis=2)
    empty = jnp.full((1, PAGES, PAGE_SIZE, 1, 16), jnp.nan, cache).view(storage_dtype(cache) if by_bits else cache)
    out, keys, values = Ops("reference", make_mesh(1)).attend(qkv, None, empty, empty, batch)
    np.testing.assert_array_equal(np.asarray(out[:2, 0, :, 0], np.float32), [[1.5, 1.5], [largest, largest]])
    for written in (keys, values):
        assert written.dtype == empty.dtype
        finite = np.isfinite(np.asarray(as_floats(written)[0], np.float32)).all(axis=(2, 3))
        assert list(zip(*np.nonzero(finite), strict=True)) == [(0, 0), (3, 0), (7, 0)], "padding goes to page 0"


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("cache", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_step_on_a_cpu_does_not_copy_its_cache(cache: str, ragged: bool) -> None:
    """It would cost as much as the cache is large, whoever runs: seconds a step. Nor do the layers that follow."""
    pages, ops = 20_000, Ops("reference", make_mesh(1))
    batch = dataclasses.replace(decode_batch([0, 0], np.ones((2, 8), np.int32), tokens=2), ragged=ragged)
    held = jax.ShapeDtypeStruct((LAYERS, pages, PAGE_SIZE, 1, 16), storage_dtype(cache))
    qkv = jax.ShapeDtypeStruct((2, 1, 3, 16), "float32")

    def layers(qkv: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
        for layer in range(LAYERS):
            out, keys, values = ops.attend(qkv, None, keys, values, batch.of_layer(layer))
            qkv = qkv + out
        return qkv, keys, values

    step = jax.jit(layers, donate_argnums=(1, 2)).lower(qkv, held, held).compile()
    memory = step.memory_analysis()
    assert memory.alias_size_in_bytes == 2 * held.size * held.dtype.itemsize
    assert memory.temp_size_in_bytes < held.size * held.dtype.itemsize / 10


def test_a_rotation_joins_no_halves() -> None:
    """XLA would compute them an element at a time, ten times as long."""
    x, tables = jnp.ones((4, 3, 4, 64)), RopeTables(jnp.ones((4, 32)), jnp.ones((4, 32)))
    assert "concatenate(" not in jax.jit(rotated).lower(x, tables).compile().as_text()
