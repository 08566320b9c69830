"""Heads of 512, layers that read what an earlier one has written, and parts of a place in the caches."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops import AttentionSpec, Ops, reference, triton
from jaxengine.ops.cache import split
from tests.jaxengine.ops.steps import LAYER, Shape, Step, random_step
from tests.jaxengine.ops.test_triton import both, check, close

WIDE = Shape(kv_heads=1, group=8, dim=512, width=8)
WINDOWED = AttentionSpec(window=40, scale=1.0)
RAGGED = pytest.mark.parametrize("ragged", [False, True])


def step_of(seed: int, shape: Shape, spec: AttentionSpec, *, ragged: bool) -> Step:
    tokens = 64 if ragged else 5
    return random_step(seed, shape, rows=5, tokens=tokens, ragged=ragged, window=spec.window, turned=shape.dim)


@RAGGED
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_heads_of_512_agree_with_the_reference(dtype: str, ragged: bool) -> None:
    spec = AttentionSpec()
    check(*both(spec), step_of(3, WIDE, spec, ragged=ragged), dtype)


@RAGGED
@pytest.mark.parametrize("shape", [WIDE, Shape(kv_heads=2, group=4, dim=64, width=8)], ids=["512", "64"])
@pytest.mark.parametrize("spec", [AttentionSpec(), WINDOWED], ids=["all", "window"])
def test_what_a_layer_wrote_is_read_as_the_layer_itself_reads_it(
    shape: Shape, spec: AttentionSpec, ragged: bool
) -> None:
    """By the same queries, which see the keys up to their own and the window's alone."""
    step = step_of(4, shape, spec, ragged=ragged)
    qkv, rope_tables, keys, values, batch = step.arrays("bfloat16")
    attend = jax.jit(partial(reference.attend, spec=spec, bias=Ops.attend.__defaults__[0]))  # type: ignore[index]
    expected, keys, values = attend(qkv, rope_tables, keys, values, batch)
    q = split(qkv, rope_tables, spec)[0]
    for read in (partial(triton.read, spec=spec, interpret=True), partial(reference.read, spec=spec)):
        close(jax.jit(read)(q, keys, values, batch)[: step.tokens], expected[: step.tokens], 2e-2)


@RAGGED
@pytest.mark.parametrize(("heads", "dim"), [(2, 32), (4, 8), (1, 128)])
def test_a_layer_sees_its_part_of_a_place_as_caches_of_its_own(heads: int, dim: int, ragged: bool) -> None:
    """And writes no other part, whatever heads the caches are shaped for: places here are of 2 heads of 64."""
    shape, spec = Shape(kv_heads=heads, group=2, dim=dim, width=8), AttentionSpec()
    parts, ops = 128 // (heads * dim), Ops("reference", None)
    step = step_of(5, shape, spec, ragged=ragged)
    qkv, rope_tables, keys, values, batch = step.arrays("float32")
    expected, written, _ = ops.attend(qkv, rope_tables, keys, values, batch)
    for part in range(parts):
        of_parts = [jnp.full((*cache.shape[:2], parts, *cache.shape[2:]), jnp.nan) for cache in (keys, values)]
        of_parts = [parted.at[:, :, part].set(cache) for parted, cache in zip(of_parts, (keys, values), strict=True)]
        places = [parted.reshape(*keys.shape[:3], 2, 64) for parted in of_parts]
        own = dataclasses.replace(batch, part=np.int32(part))
        attended, *caches = ops.attend(qkv, rope_tables, *places, own)
        np.testing.assert_array_equal(attended[: step.tokens], expected[: step.tokens])
        seen = caches[0].reshape(of_parts[0].shape)
        np.testing.assert_array_equal(seen[LAYER, :, part], written[LAYER])
        assert jnp.isnan(jnp.delete(seen, part, axis=2)).all()
        np.testing.assert_array_equal(
            ops.read(split(qkv, rope_tables, spec)[0], caches[0], caches[1], own, spec)[: step.tokens],
            expected[: step.tokens],
        )
