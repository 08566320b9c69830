"""The kernels, interpreted on the CPU, against the reference: same step, same answer, up to the rounding of the dtype.

Interpreted means that the kernel's own program runs, block by block; it proves addressing, masks and the merging of
partial results, not the compiler. What the compiler makes of the kernels is in tests/gpu_compile.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jaxengine.ops import AttentionBias, AttentionSpec, RopeTables, StepBatch, reference, triton
from jaxengine.ops.triton import decode, prefill, tile
from tests.jaxengine.ops.steps import (
    LAYER,
    LAYERS,
    Shape,
    Step,
    build_step,
    dense_attention,
    random_bias,
    random_step,
    relative_bias,
    seeing_all,
    seeing_images,
)

# Outputs are averages of N(0, 1) values, at most a few units large. Both sides read the same rounded inputs; what
# differs is the order of f32 sums and, in 16 bits, that the kernels' weights are rounded before they meet the values.
TOLERANCE = {"float32": 5e-6, "float16": 4e-3, "bfloat16": 3e-2}
# A rotated key is rounded once; where the compiler fuses a product and a sum, to the other side. Keys are below 8.
ROUNDING = {"float32": 1e-6, "float16": 4e-3, "bfloat16": 3.2e-2, "float8_e4m3fn": 0.5}

TINY = Shape(kv_heads=1, group=1, dim=2, width=32)
GEMMA = AttentionSpec(scale=0.08, window=200, softcap=5.0)

Run = Callable[[Array, RopeTables | None, Array, Array, StepBatch], tuple[Array, Array, Array]]


def both(spec: AttentionSpec = AttentionSpec(), bias: AttentionBias = AttentionBias()) -> tuple[Run, Run]:
    """The kernels and the reference, each compiled at most once."""
    kernels = partial(triton.attend, spec=spec, bias=bias, interpret=True)
    return jax.jit(kernels), jax.jit(partial(reference.attend, spec=spec, bias=bias))


def check(kernels: Run, oracle: Run, step: Step, dtype: str, cache: str | None = None) -> None:
    arrays, real = step.arrays(dtype, cache), step.tokens
    (out, *caches), (expected, *written) = kernels(*arrays), oracle(*arrays)
    close(out[:real], expected[:real], TOLERANCE[dtype])
    assert not out[real:].any(), "padding is 0"
    for ours, theirs in zip(caches, written, strict=True):
        close(ours[LAYER, 1:], theirs[LAYER, 1:], ROUNDING[cache or dtype])
        assert jnp.isnan(ours[LAYER, 0].astype(jnp.float32)).all(), "padding is not written"
        for other in {*range(LAYERS)} - {LAYER}:
            assert jnp.isnan(ours[other].astype(jnp.float32)).all(), "another layer is not written"


def close(ours: Array, theirs: Array, tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("shape", "turned", "spec", "with_terms", "dtype"),
    [
        pytest.param(Shape(kv_heads=2, group=1, dim=80), 32, AttentionSpec(), False, "float32", id="phi 2"),
        pytest.param(
            Shape(kv_heads=2, group=4, width=12, page_size=32), 64, AttentionSpec(), False, "bfloat16", id="llama"
        ),
        pytest.param(Shape(kv_heads=1, group=2, dim=256), 256, GEMMA, False, "float16", id="gemma 2"),
        pytest.param(
            Shape(kv_heads=1, group=20, dim=96),
            0,
            AttentionSpec(window=70, softcap=4.0),
            True,
            "float32",
            id="every term",
        ),
    ],
)
def test_a_mixed_step_agrees_with_the_reference(
    shape: Shape, turned: int, spec: AttentionSpec, with_terms: bool, dtype: str
) -> None:
    kernels, oracle = both(spec, random_bias(1, shape) if with_terms else AttentionBias())
    for seed in range(3):
        step = random_step(seed, shape, rows=5, tokens=96, ragged=True, window=spec.window, turned=turned)
        check(kernels, oracle, step, dtype)


@pytest.mark.parametrize(
    ("shape", "turned", "spec", "with_terms", "dtype"),
    [
        pytest.param(Shape(kv_heads=2, group=3, dim=96), 96, AttentionSpec(), False, "bfloat16", id="plain"),
        pytest.param(
            Shape(kv_heads=1, group=8), 16, AttentionSpec(window=70, softcap=4.0), True, "float32", id="every term"
        ),
    ],
)
def test_a_decode_step_agrees_with_the_reference(
    shape: Shape, turned: int, spec: AttentionSpec, with_terms: bool, dtype: str
) -> None:
    kernels, oracle = both(spec, random_bias(1, shape) if with_terms else AttentionBias())
    for seed in range(3):
        step = random_step(seed, shape, rows=5, tokens=5, ragged=False, window=spec.window, turned=turned)
        check(kernels, oracle, step, dtype)


@pytest.mark.parametrize(("group", "ragged"), [(7, False), (16, False), (71, False), (71, True)])
def test_a_key_may_have_any_number_of_query_heads(group: int, ragged: bool) -> None:
    """71 is Falcon 7B's: more than half a tile, so that a tile of prompts is one query."""
    shape = Shape(kv_heads=1, group=group, dim=16, width=8)
    check(*both(), random_step(group, shape, rows=5, tokens=32 if ragged else 5, ragged=ragged), "float32")


@pytest.mark.parametrize(("window", "ragged"), [(1, False), (5, False), (5, True)])
def test_a_window_may_be_smaller_than_a_page(window: int, ragged: bool) -> None:
    spec, shape = AttentionSpec(window=window, softcap=4.0), Shape(kv_heads=1, group=2, dim=16, width=8)
    step = random_step(window, shape, rows=5, tokens=64 if ragged else 5, ragged=ragged, window=window)
    check(*both(spec, random_bias(window, shape)), step, "float32")


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
def test_relative_positions_are_added_by_distance(ragged: bool) -> None:
    shape = Shape(kv_heads=2, group=2, dim=64, width=8)
    step = random_step(1, shape, rows=5, tokens=64 if ragged else 5, ragged=ragged)
    check(*both(AttentionSpec(), relative_bias(1, shape)), step, "float32")


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
def test_alibi_may_be_rounded_as_falcon_s_is(ragged: bool) -> None:
    shape = Shape(kv_heads=2, group=2, dim=64)
    step = random_step(1, shape, rows=5, tokens=64 if ragged else 5, ragged=ragged)
    check(*both(AttentionSpec(alibi_scale=0.125), random_bias(1, shape)), step, "float32")


def test_an_encoder_s_tokens_look_behind_them_too() -> None:
    shape = Shape(kv_heads=2, group=1, dim=64, width=8)
    step = seeing_all(random_step(2, shape, rows=5, tokens=96, ragged=True))
    check(*both(AttentionSpec(), relative_bias(2, shape)), step, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("past_window", [False, True], ids=["within the window", "past the window"])
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        (Shape(kv_heads=2, group=1, dim=16), 0),
        (Shape(kv_heads=1, group=2, dim=256, width=48), 70),
        (Shape(kv_heads=1, group=71, dim=16, width=8), 5),
    ],
    ids=["all keys", "gemma 3", "tiles of one query"],
)
def test_an_image_s_tokens_see_it_to_its_end(shape: Shape, window: int, past_window: bool) -> None:
    """Images begin and end anywhere in tiles and blocks of keys, and may be wider than the window."""
    spec, hidden, bias = AttentionSpec(window=window, softcap=4.0), 0 if past_window else window, random_bias(1, shape)
    kernels, oracle = both(spec, bias)
    for seed in range(3):
        step = random_step(seed, shape, rows=4, tokens=288, ragged=True, window=hidden)
        step = seeing_images(seed, step, past_window=past_window)
        check(kernels, oracle, step, "float32")
        out = np.asarray(kernels(*step.arrays("float32"))[0])[: step.tokens]
        np.testing.assert_allclose(out, dense_attention(step, spec, bias), atol=5e-6)


def test_a_step_of_a_model_with_horizons_may_have_none() -> None:
    step = random_step(1, Shape(kv_heads=2, group=2, dim=16, width=8), rows=5, tokens=96, ragged=True, window=20)
    kernels, _ = both(AttentionSpec(window=20))
    without = replace(step, batch=replace(step.batch, horizon=jnp.zeros(96, jnp.int32)))
    np.testing.assert_array_equal(kernels(*step.arrays("float32"))[0], kernels(*without.arrays("float32"))[0])


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
def test_caches_can_be_read_as_they_are_by_queries_that_see_all_of_them(ragged: bool) -> None:
    """As a decoder reads what its encoder wrote."""
    spec, shape = AttentionSpec(), Shape(kv_heads=2, group=1, dim=64, width=8)
    step = seeing_all(random_step(3, shape, rows=5, tokens=96 if ragged else 5, ragged=ragged))
    qkv, *_, batch = step.arrays("float32")
    _, keys, values = jax.jit(partial(reference.attend, spec=spec, bias=AttentionBias()))(*step.arrays("float32"))
    q = qkv[:, :, :-2]
    out = jax.jit(partial(triton.read, spec=spec, interpret=True))(q, keys, values, batch)
    expected = jax.jit(partial(reference.attention, spec=spec, bias=AttentionBias()))(q, keys, values, batch)
    close(out[: step.tokens], expected[: step.tokens], TOLERANCE["float32"])
    assert not out[step.tokens :].any()


def test_an_8_bit_cache_is_read_as_the_reference_reads_it() -> None:
    for ragged in (True, False):
        step = random_step(0, Shape(kv_heads=1, group=4, width=8), rows=5, tokens=64 if ragged else 5, ragged=ragged)
        check(*both(), step, "bfloat16", cache="float8_e4m3fn")


def test_what_is_too_large_for_an_8_bit_cache_saturates() -> None:
    """A plain cast would make NaN of it. Queries are as much smaller, so that more than one key has a weight."""
    kernels, oracle = both()
    for ragged in (True, False):
        step = random_step(0, Shape(kv_heads=1, group=4, width=8), rows=5, tokens=64 if ragged else 5, ragged=ragged)
        qkv, *rest = step.arrays("bfloat16", "float8_e4m3fn")
        louder = qkv * jnp.array([1 / 512] * 4 + [512, 1], qkv.dtype)[:, None]
        (out, keys, _), (expected, theirs, _) = kernels(louder, *rest), oracle(louder, *rest)
        close(out[: step.tokens], expected[: step.tokens], TOLERANCE["bfloat16"])
        close(keys[LAYER, 1:], theirs[LAYER, 1:], ROUNDING["float8_e4m3fn"] * 64)
        assert jnp.nanmax(jnp.abs(theirs[LAYER, 1:].astype(jnp.float32))) == 448


@pytest.mark.parametrize("busy", [1, 8, 1024])
def test_every_length_around_the_blocks_and_splits_of_a_row_is_right(
    busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many programs the rows share."""
    monkeypatch.setattr(decode, "BUSY", busy)
    shape = Shape(kv_heads=1, group=1, dim=16, width=48)
    edges = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 511, 512, 513, 767, 768]
    count = len(edges)
    step = build_step(np.random.default_rng(0), shape, edges, [1] * count, rows=count, tokens=count, ragged=False)
    check(*both(), step, "float32")


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
def test_a_step_of_padding_alone_is_zero(ragged: bool) -> None:
    shape = Shape(kv_heads=1, group=1, dim=16, width=8)
    step = build_step(np.random.default_rng(0), shape, [], [], rows=4, tokens=16 if ragged else 4, ragged=ragged)
    check(*both(), step, "float32")


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
def test_no_page_is_read_that_a_table_has_behind_its_row_s_length_or_for_no_row(ragged: bool) -> None:
    """One row in four, of 3 pages of 8; all else points nowhere."""
    shape, count = Shape(kv_heads=1, group=1, dim=16, width=8), 20 if ragged else 1
    tokens = 32 if ragged else 4
    step = build_step(np.random.default_rng(3), shape, [40], [count], rows=4, tokens=tokens, ragged=ragged)
    wild = replace(step.batch, tables=step.batch.tables.at[1:].set(2**31 - 1).at[0, 3:].set(2**31 - 1))
    kernels, oracle = both()
    expected, *_ = oracle(*step.arrays("float32"))
    out, *_ = kernels(*step.arrays("float32")[:4], wild)
    close(out[:count], expected[:count], TOLERANCE["float32"])
    assert not jnp.any(out[count:])


@pytest.mark.parametrize("queries", [1, 7, 32])
def test_tiles_cover_each_query_of_longer_rows_and_the_padding_once(queries: int) -> None:
    random = np.random.default_rng(queries)
    tiles_of, single_rows = jax.jit(prefill.tiles_of, static_argnums=1), jax.jit(decode.single_rows)
    for _ in range(20):
        counts = random.multinomial(int(random.integers(0, 97)), random.dirichlet(np.full(8, 0.4))).tolist()
        lengths = [count + int(random.integers(0, 300)) for count in counts]
        step = build_step(random, TINY, lengths, counts, rows=9, tokens=96, ragged=True)
        seen = np.zeros(96, int)
        for each in zip(*map(np.asarray, tiles_of(step.batch, queries)[:5]), strict=True):
            row, token, count, position, keys = each
            seen[token : token + count] += 1
            if count and keys:
                assert (np.asarray(step.batch.row)[token : token + count] == row).all()
                assert np.asarray(step.batch.position)[token] == position == keys - count
        longer = np.repeat([*(count != 1 for count in counts), True], [*counts, 96 - sum(counts)])
        np.testing.assert_array_equal(seen, longer)
        assert np.count_nonzero(single_rows(step.batch).kv_length) == counts.count(1)


def test_programs_begin_with_the_tiles_that_see_most_and_end_with_those_that_have_nothing_to_do() -> None:
    step = build_step(np.random.default_rng(0), TINY, [40, 30, 9, 70], [40, 1, 9, 20], rows=9, tokens=96, ragged=True)
    tiles, order = jax.jit(lambda batch: (made := prefill.tiles_of(batch, 7), prefill.longest_first(made)))(step.batch)
    count, keys = np.asarray(tiles.queries)[order], np.asarray(tiles.kv_length)[order]
    assert sorted(order.tolist()) == list(range(len(count)))
    assert count.astype(bool).tolist() == sorted(count.astype(bool).tolist(), reverse=True)
    assert keys[count > 0].tolist() == sorted(keys[count > 0].tolist(), reverse=True)


@pytest.mark.parametrize(
    ("rows", "kv_heads", "splits"), [(1, 8, 32), (32, 8, 16), (128, 8, 4), (256, 8, 4), (256, 1, 16)]
)
def test_the_programs_that_share_a_row_fill_the_gpu_at_any_batch_size(rows: int, kv_heads: int, splits: int) -> None:
    assert decode.splits_for(rows, kv_heads) == splits


@pytest.mark.parametrize(
    ("rows", "tokens", "least"),
    [
        *[(1, 1024, decode.MIN_BLOCKS), (32, 1024, 4), (128, 1024, 16), (256, 1024, 32), (128, 4096, 64)],
        (256, 1 << 20, 1 << 15),
    ],
)
def test_the_more_there_is_to_read_the_fewer_programs_share_a_row(rows: int, tokens: int, least: int) -> None:
    """Blocks of 64 keys, of 8 heads, over 1024 programs."""
    problem = tile.Problem(8, 4, 128, 100, 16, jnp.dtype("bfloat16"), AttentionSpec(), interpret=True)
    assert decode.least_blocks(problem, jnp.full(rows, tokens, jnp.int32)).tolist() == [least]
