"""The oracle of the kernels against the definition of attention, in f64 and one query at a time."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops import AttentionBias, AttentionSpec, reference
from jaxengine.ops.batch import Wanted
from tests.jaxengine.ops.steps import (
    LAYER,
    Shape,
    build_step,
    dense_attention,
    random_bias,
    random_step,
    relative_bias,
    seeing_all,
    seeing_images,
)

SHAPE = Shape(kv_heads=2, group=3, dim=32)
SPECS = {
    "plain": AttentionSpec(),
    "scaled": AttentionSpec(scale=0.4),
    "window": AttentionSpec(window=50),
    "window of one": AttentionSpec(window=1),
    "soft cap": AttentionSpec(softcap=2.0),
    "rounded": AttentionSpec(alibi_scale=0.3),
    "all": AttentionSpec(scale=0.4, window=150, softcap=3.0),
}


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
@pytest.mark.parametrize("name", SPECS)
def test_reference_is_attention_as_defined(name: str, ragged: bool) -> None:
    spec = SPECS[name]
    bias = random_bias(1, SHAPE) if name in ("rounded", "all") else AttentionBias()
    turned = {"plain": 0, "scaled": SHAPE.dim}.get(name, 20)
    step = random_step(0, SHAPE, rows=5, tokens=64 if ragged else 5, ragged=ragged, window=spec.window, turned=turned)
    out, _, _ = jax.jit(partial(reference.attend, spec=spec, bias=bias))(*step.arrays("float32"))
    np.testing.assert_allclose(np.asarray(out)[: step.tokens], dense_attention(step, spec, bias), atol=2e-6)


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
@pytest.mark.parametrize("shape", [Shape(kv_heads=8), Shape(page_size=128, width=3)], ids=["many heads", "large pages"])
def test_heads_may_be_many_and_pages_large(shape: Shape, ragged: bool) -> None:
    step = random_step(1, shape, rows=5, tokens=64 if ragged else 5, ragged=ragged)
    out, _, _ = jax.jit(partial(reference.attend, spec=AttentionSpec(), bias=AttentionBias()))(*step.arrays("float32"))
    expected = dense_attention(step, AttentionSpec(), AttentionBias())
    np.testing.assert_allclose(np.asarray(out)[: step.tokens], expected, atol=2e-6)


@pytest.mark.parametrize("everything", [False, True], ids=["causal", "all"])
def test_relative_positions_and_queries_that_see_everything_are_as_defined(everything: bool) -> None:
    spec, bias = AttentionSpec(scale=1.0), relative_bias(1, SHAPE)
    step = random_step(3, SHAPE, rows=5, tokens=64, ragged=True)
    step = seeing_all(step) if everything else step
    out, _, _ = jax.jit(partial(reference.attend, spec=spec, bias=bias))(*step.arrays("float32"))
    np.testing.assert_allclose(np.asarray(out)[: step.tokens], dense_attention(step, spec, bias), atol=5e-6)


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
def test_a_row_gets_the_same_bits_whoever_its_neighbours_are(ragged: bool) -> None:
    spec = AttentionSpec(window=100)
    attend = jax.jit(partial(reference.attend, spec=spec, bias=AttentionBias()))
    step = random_step(2, SHAPE, rows=5, tokens=64 if ragged else 5, ragged=ragged, window=spec.window)
    before = np.asarray(attend(*step.arrays("float32"))[0])
    qkv, rope_tables, keys, values, batch = step.arrays("float32")
    others = np.asarray(batch.row) != 0
    table = np.asarray(batch.tables)[1:]
    after = np.asarray(
        attend(
            qkv.at[others].multiply(3),
            rope_tables,
            keys.at[LAYER, table].multiply(2),
            values.at[LAYER, table].multiply(2),
            batch,
        )[0]
    )
    np.testing.assert_array_equal(before[~others], after[~others])
    assert not np.array_equal(before[others], after[others])


BORDERS = {  # of each row, the length of its sequence and how many of its tokens are queries
    "a wide block": [(256, 256)],
    "a wide block behind a prefix": [(700, 256)],
    "a wide block's end": [(300, 300), (40, 40)],
    "the end of two blocks of keys": [(512, 256), (513, 100)],
    "between two blocks of keys": [(767, 200), (257, 257)],
    "the fewest queries of a wide block": [(96, 96), (111, 111), (95, 95)],
    "the end of the step": [(40, 40), (700, 216)],
    "a narrow block's end": [(16, 16), (33, 17), (650, 15), (1, 1)],
    "one query each": [(700, 1), (256, 1), (257, 1), (64, 1), (65, 1), (1, 1)],
    "one query each before a wide block": [(700, 1), (256, 1), (520, 200)],
}


@pytest.mark.parametrize("window", [0, 1, 40, 300])
@pytest.mark.parametrize("name", BORDERS)
def test_blocks_of_queries_and_keys_end_where_rows_do(name: str, window: int) -> None:
    shape, spec = Shape(kv_heads=2, group=2, dim=16, width=48), AttentionSpec(window=window)
    lengths, counts = (list(each) for each in zip(*BORDERS[name], strict=True))
    tokens = -(-sum(counts) // 32) * 32
    random = np.random.default_rng(4)
    step = build_step(random, shape, lengths, counts, rows=8, tokens=tokens, ragged=True, window=window)
    out, _, _ = jax.jit(partial(reference.attend, spec=spec, bias=AttentionBias()))(*step.arrays("float32"))
    np.testing.assert_allclose(np.asarray(out)[: step.tokens], dense_attention(step, spec, AttentionBias()), atol=2e-6)


@pytest.mark.parametrize("everything", [False, True], ids=["causal", "all"])
@pytest.mark.parametrize("page_size", [16, 512])
def test_wide_blocks_know_every_bias(page_size: int, everything: bool) -> None:
    shape = Shape(kv_heads=2, group=3, dim=16, width=1024 // page_size, page_size=page_size)
    spec = AttentionSpec(softcap=3.0, window=0 if everything else 400)
    bias = random_bias(1, shape)._replace(relative=relative_bias(1, shape).relative)
    step = build_step(
        np.random.default_rng(5),
        shape,
        [900, 300, 130],
        [300, 1, 130],
        rows=4,
        tokens=448,
        ragged=True,
        window=spec.window,
    )
    step = seeing_all(step) if everything else step
    bias = bias._replace(slopes=None) if everything else bias
    out, _, _ = jax.jit(partial(reference.attend, spec=spec, bias=bias))(*step.arrays("float32"))
    np.testing.assert_allclose(np.asarray(out)[: step.tokens], dense_attention(step, spec, bias), atol=5e-6)


@pytest.mark.parametrize("past_window", [False, True], ids=["within the window", "past the window"])
@pytest.mark.parametrize("window", [0, 40, 300])
def test_an_image_s_tokens_see_it_to_its_end(window: int, past_window: bool) -> None:
    shape, spec = Shape(kv_heads=2, group=2, dim=16, width=48), AttentionSpec(window=window)
    for seed, (lengths, counts) in enumerate([([700, 300, 1], [200, 300, 1]), ([100, 40, 96, 33], [99, 40, 17, 1])]):
        random, tokens, hidden = np.random.default_rng(seed), -(-sum(counts) // 32) * 32, 0 if past_window else window
        step = build_step(random, shape, lengths, counts, rows=5, tokens=tokens, ragged=True, window=hidden)
        step = seeing_images(seed, step, past_window=past_window)
        out, _, _ = jax.jit(partial(reference.attend, spec=spec, bias=AttentionBias()))(*step.arrays("float32"))
        expected = dense_attention(step, spec, AttentionBias())
        np.testing.assert_allclose(np.asarray(out)[: step.tokens], expected, atol=2e-6)


def test_in_a_last_layer_no_query_in_front_of_those_wanted_attends() -> None:
    step = build_step(np.random.default_rng(10), SHAPE, [300, 40, 60], [200, 40, 60], rows=4, tokens=320, ragged=True)
    qkv, rope_tables, keys, values, batch = step.arrays("float32")
    attend = jax.jit(partial(reference.attend, spec=AttentionSpec(), bias=AttentionBias()))
    first = np.array([199, 320, 245, 320])  # the second row's are not wanted
    for only in (False, True):
        wanted = replace(batch, wanted=Wanted(jnp.array(only), jnp.array([199]), jnp.asarray(first)))
        out = np.asarray(attend(qkv, rope_tables, keys, values, wanted)[0])[: step.tokens]
        attends = np.arange(step.tokens) >= only * np.repeat(first[:3], np.array(step.counts))
        np.testing.assert_allclose(
            out[attends], dense_attention(step, AttentionSpec(), AttentionBias())[attends], atol=2e-6
        )
        assert not out[~attends].any()


def test_a_prompt_multiplies_its_keys_in_large_products() -> None:
    """And only what is left at the end in smaller ones: half as many took 1.17 times as long."""
    shape = Shape(kv_heads=2, group=3, dim=16, width=48)
    step = build_step(np.random.default_rng(9), shape, [700], [256], rows=2, tokens=256, ragged=True)
    attend = jax.jit(partial(reference.attend, spec=AttentionSpec(), bias=AttentionBias()))
    scores = re.findall(r"= f32\[2,768,(\d+)\]\S* dot\(", attend.lower(*step.arrays("float32")).compile().as_text())
    assert sorted(map(int, scores)) == [16, 16, 256, 512]  # of which 16 are the sums of values


def test_a_row_gets_the_same_bits_wherever_it_stands_in_a_step() -> None:
    shape, attend = Shape(width=48), jax.jit(partial(reference.attend, spec=AttentionSpec(), bias=AttentionBias()))

    def of_last_row(counts: list[int]) -> np.ndarray:
        step = build_step(np.random.default_rng(6), shape, [700] * 3, counts, rows=3, tokens=448, ragged=True)
        qkv, _, keys, values, batch = step.arrays("float32")
        own = np.random.default_rng(7).normal(size=(110, *step.qkv.shape[1:]))
        prefix = np.random.default_rng(8).normal(size=(2, 48, *step.keys.shape[1:]))
        table, last = np.asarray(batch.tables)[2], slice(step.tokens - 110, step.tokens)
        keys, values = keys.at[LAYER, table].set(prefix[0]), values.at[LAYER, table].set(prefix[1])
        return np.asarray(attend(qkv.at[last].set(own), None, keys, values, batch)[0])[last]

    np.testing.assert_array_equal(of_last_row([1, 7, 110]), of_last_row([200, 138, 110]))
