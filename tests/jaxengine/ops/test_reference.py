"""The oracle of the kernels against the definition of attention, in f64 and one query at a time."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxengine.ops import AttentionBias, AttentionSpec, reference
from tests.jaxengine.ops.steps import Shape, dense_attention, random_bias, random_step, relative_bias, seeing_all

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
            qkv.at[others].multiply(3), rope_tables, keys.at[table].multiply(2), values.at[table].multiply(2), batch
        )[0]
    )
    np.testing.assert_array_equal(before[~others], after[~others])
    assert not np.array_equal(before[others], after[others])
