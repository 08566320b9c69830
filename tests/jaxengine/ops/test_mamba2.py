"""Mamba 2 over the random steps of the delta rule, whose code it shares: C and B are queries and keys.

Judged by the recurrence written down once more, in NumPy and f64, one row and one head after the other.
"""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops.delta_rule import DeltaRule, mamba2, reference
from jaxengine.ops.triton.delta_rule import delta_rule as kernel
from tests.jaxengine.ops.state_steps import LAYER, LAYERS
from tests.jaxengine.ops.test_delta_rule import SLOTS, STEPS, Step

BACKENDS: dict[str, DeltaRule] = {
    "reference": partial(reference, corrects=False),
    "triton": partial(kernel, corrects=False, interpret=True),
}


def expected(step: Step) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """y of the real tokens, and the states of each slot that a row wrote."""
    c, b, x, decay, delta = (np.asarray(array, np.float64) for array in step.inputs)
    y, written = np.zeros((sum(step.counts), *x.shape[1:])), {}
    rows = zip(step.counts, np.cumsum(step.counts), step.before, step.slots, step.guesses, strict=True)
    for count, end, start, slot, guesses in rows:
        states = step.states[slot].astype(np.float64) if start else np.zeros(step.states.shape[1:])
        written[slot] = states
        for t in range(end - count, end):
            for head in np.ndindex(x.shape[1:3]):
                states[head] = np.exp(decay[t][head]) * states[head] + np.outer(
                    b[t, head[0]], delta[t][head] * x[t][head]
                )
                y[t][head] = c[t, head[0]] @ states[head]
            if t < end - guesses:
                written[slot] = states.copy()
    return y, written


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STEPS)
def test_every_row_continues_its_own_states_and_leaves_them_behind(name: str, backend: str) -> None:
    step = STEPS[name]
    before = jnp.full((LAYERS, *step.states.shape), jnp.nan, jnp.float32).at[LAYER].set(step.states)
    y, after = BACKENDS[backend](step.inputs, before, step.batch)
    wanted, written = expected(step)
    np.testing.assert_allclose(y[: len(wanted)], wanted, atol=1e-4)
    for slot, states in written.items():
        np.testing.assert_allclose(after[LAYER, slot], states, atol=1e-4)
    others = [slot for slot in range(1, SLOTS) if slot not in written]
    np.testing.assert_array_equal(after[LAYER, np.array(others)], step.states[others])
    assert np.isnan(np.delete(after, LAYER, axis=0)).all(), "another layer is not written"


def test_heads_that_follow_each_other_share_a_group() -> None:
    step = STEPS["mixed"]
    inputs, batch, states = step.inputs, replace(step.batch, layer=0), jnp.asarray(step.states)[None]
    tokens, groups, each, width = inputs.values.shape
    heads = groups * each
    flat = inputs._replace(
        values=inputs.values.reshape(tokens, heads, width),
        decay=inputs.decay.reshape(tokens, heads),
        rate=inputs.rate.reshape(tokens, heads),
    )
    y, after = mamba2("reference", None, heads)(flat, states.reshape(1, SLOTS, heads, -1, width), batch)
    wanted, grouped = reference(inputs, states, batch, corrects=False)
    np.testing.assert_array_equal(y, wanted.reshape(y.shape))
    np.testing.assert_array_equal(after, grouped.reshape(after.shape))
