"""The gated delta rule over random steps: rows of every length, some new and some continued, with NaN where nobody may
look.

Judged by the recurrence written down once more, in NumPy and f64, one row and one head after the other.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops.batch import DeltaInputs, StepBatch
from jaxengine.ops.delta_chunk import EPS
from jaxengine.ops.delta_rule import DeltaRule, reference
from jaxengine.ops.triton.delta_rule import delta_rule as kernel
from tests.jaxengine.ops.state_steps import LAYER, LAYERS, batch_of

BACKENDS: dict[str, DeltaRule] = {"reference": reference, "triton": partial(kernel, interpret=True)}
SLOTS = 12
Sizes = tuple[int, int, int, int]  # key heads, value heads of each, and their dimensions


@dataclass(frozen=True)
class Step:
    """`counts[r]` tokens of row r, the last `guesses[r]` of them guesses, which has `before[r]` behind it; its states
    are in `slots[r]`.
    """

    counts: list[int]
    before: list[int]
    slots: list[int]
    inputs: DeltaInputs
    states: np.ndarray
    batch: StepBatch
    guesses: list[int]


def random_step(
    seed: int, counts: list[int], *, tokens: int, rows: int, sizes: Sizes, guesses: list[int] | None = None
) -> Step:
    """A step of `tokens` tokens and `rows` rows, the last of both unused; a ragged one unless they are as many."""
    random, (heads, group, key, value) = np.random.default_rng(seed), sizes
    before = [int(random.choice([0, 5])) for _ in counts]
    slots = [int(slot) for slot in random.permutation(np.arange(1, SLOTS))[: len(counts)]]
    states = np.full((SLOTS, *sizes), np.nan, np.float32)
    for slot, start in zip(slots, before, strict=True):
        states[slot] = random.normal(size=sizes) if start else np.nan
    inputs = DeltaInputs(
        queries=random.normal(size=(tokens, heads, key)),
        keys=random.normal(size=(tokens, heads, key)),
        values=random.normal(size=(tokens, heads, group, value)),
        decay=-random.uniform(0, 2, (tokens, heads, group)),
        rate=random.uniform(0, 1, (tokens, heads, group)),
    )
    made = DeltaInputs(*(jnp.asarray(each, jnp.float32) for each in inputs))
    batch = batch_of(counts, before, slots, tokens, rows, guesses or ())
    return Step(counts, before, slots, made, states, batch, guesses or [0] * len(counts))


def expected(step: Step) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """y of the real tokens, and the states of each slot that a row wrote."""
    queries, keys, values, decay, rate = (np.asarray(array, np.float64) for array in step.inputs)
    queries, keys = (each / np.sqrt((each**2).sum(-1, keepdims=True) + EPS) for each in (queries, keys))
    y, written, ends = np.zeros((sum(step.counts), *values.shape[1:])), {}, np.cumsum(step.counts)
    rows = zip(step.counts, ends, step.before, step.slots, step.guesses, strict=True)
    for count, end, start, slot, guesses in rows:
        all_states = step.states[slot].astype(np.float64) if start else np.zeros(step.states.shape[1:])
        for head, one in np.ndindex(values.shape[1:3]):
            s = kept = all_states[head, one]
            for t in range(end - count, end):
                s = np.exp(decay[t, head, one]) * s
                s = s + np.outer(keys[t, head], rate[t, head, one] * (values[t, head, one] - keys[t, head] @ s))
                y[t, head, one] = queries[t, head] @ s / np.sqrt(queries.shape[-1])
                kept = s if t < end - guesses else kept
            all_states[head, one] = kept
        written[slot] = all_states
    return y, written


STEPS = {
    "decode": random_step(0, [1, 1, 1], tokens=4, rows=4, sizes=(2, 3, 12, 20)),
    "decode, full": random_step(1, [1, 1], tokens=2, rows=2, sizes=(2, 1, 16, 16)),
    "mixed": random_step(2, [1, 7, 4, 1, 13], tokens=32, rows=8, sizes=(2, 2, 16, 8)),
    "mixed, odd sizes": random_step(3, [5, 3], tokens=16, rows=4, sizes=(3, 1, 6, 11)),
    "a lone chunk": random_step(4, [16], tokens=16, rows=1, sizes=(1, 2, 32, 24)),
    "guesses": random_step(6, [1, 7, 4, 2, 13], tokens=32, rows=8, sizes=(2, 2, 16, 8), guesses=[0, 6, 0, 1, 5]),
    "long guesses": random_step(7, [37, 20, 24], tokens=96, rows=3, sizes=(2, 1, 16, 24), guesses=[20, 19, 0]),
    "several chunks": random_step(5, [37, 1, 20], tokens=64, rows=4, sizes=(2, 1, 16, 40)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STEPS)
def test_every_row_continues_its_own_states_and_leaves_them_behind(name: str, backend: str) -> None:
    step = STEPS[name]
    before = jnp.full((LAYERS, *step.states.shape), jnp.nan, jnp.float32).at[LAYER].set(step.states)
    y, after = BACKENDS[backend](step.inputs, before, step.batch)
    states, (wanted, written) = after[LAYER], expected(step)
    np.testing.assert_allclose(y[: len(wanted)], wanted, atol=1e-5)
    for slot, state in written.items():
        np.testing.assert_allclose(states[slot], state, atol=1e-5)
    others = [slot for slot in range(1, SLOTS) if slot not in written]
    np.testing.assert_array_equal(states[np.array(others)], step.states[others])
    assert np.isnan(np.delete(after, LAYER, axis=0)).all(), "another layer is not written"


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_behind_a_ragged_step_is_zero(backend: str) -> None:
    step = STEPS["mixed"]
    y, _ = BACKENDS[backend](step.inputs, jnp.asarray(step.states)[None], replace(step.batch, layer=0))
    assert not np.asarray(y)[sum(step.counts) :].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_text_of_one_token_over_and_over_keeps_its_digits(backend: str) -> None:
    """Keys that are all alike, written at the full rate and never forgotten: the chunk's matrix is all ones."""
    step = STEPS["several chunks"]
    inputs = step.inputs._replace(
        keys=jnp.broadcast_to(step.inputs.keys[:1], step.inputs.keys.shape),
        decay=jnp.zeros_like(step.inputs.decay),
        rate=jnp.ones_like(step.inputs.rate),
    )
    step = replace(step, inputs=inputs)
    y, _ = BACKENDS[backend](inputs, jnp.asarray(step.states)[None], replace(step.batch, layer=0))
    wanted, _ = expected(step)
    np.testing.assert_allclose(y[: len(wanted)], wanted, atol=2e-5)
