"""The oracle of the kernels against the definition of attention, in f64 and one query at a time."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxengine.ops import AttentionSpec, HeadTerms, reference
from tests.jaxengine.ops.steps import Shape, dense_attention, random_step, random_terms

SHAPE = Shape(kv_heads=2, group=3, dim=32)
SPECS = {
    "plain": AttentionSpec(),
    "scaled": AttentionSpec(scale=0.4),
    "window": AttentionSpec(window=50),
    "window of one": AttentionSpec(window=1),
    "soft cap": AttentionSpec(softcap=2.0),
    "all": AttentionSpec(scale=0.4, window=150, softcap=3.0),
}


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
@pytest.mark.parametrize("name", SPECS)
def test_reference_is_attention_as_defined(name: str, ragged: bool) -> None:
    spec = SPECS[name]
    heads = random_terms(1, SHAPE) if name == "all" else HeadTerms()
    step = random_step(0, SHAPE, rows=5, tokens=64 if ragged else 5, ragged=ragged, window=spec.window)
    out = jax.jit(partial(reference.attention, spec=spec, heads=heads))(*step.arrays("float32"))
    np.testing.assert_allclose(np.asarray(out)[: step.tokens], dense_attention(step, spec, heads), atol=2e-6)


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
def test_a_row_gets_the_same_bits_whoever_its_neighbours_are(ragged: bool) -> None:
    spec = AttentionSpec(window=100)
    attend = jax.jit(partial(reference.attention, spec=spec, heads=HeadTerms()))
    step = random_step(2, SHAPE, rows=5, tokens=64 if ragged else 5, ragged=ragged, window=spec.window)
    before = np.asarray(attend(*step.arrays("float32")))
    q, keys, values, batch = step.arrays("float32")
    others = np.asarray(batch.row) != 0
    table = np.asarray(batch.tables)[1:]
    after = np.asarray(
        attend(q.at[others].multiply(3), keys.at[table].multiply(2), values.at[table].multiply(2), batch)
    )
    np.testing.assert_array_equal(before[~others], after[~others])
    assert not np.array_equal(before[others], after[others])
