"""The scan over random steps: rows of every length, some new and some continued, with NaN where nobody may look.

Judged by the recurrence written down once more, in NumPy and f64, one row after the other.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops.batch import ScanInputs, StepBatch
from jaxengine.ops.scan import Scan, reference
from jaxengine.ops.triton.scan import scan as kernel
from tests.jaxengine.ops.state_steps import LAYER, LAYERS, batch_of

BACKENDS: dict[str, Scan] = {"reference": reference, "triton": partial(kernel, interpret=True)}
PAGES = 12


@dataclass(frozen=True)
class Step:
    """`counts[r]` tokens of row r, the last `guesses[r]` of them guesses, which has `before[r]` behind it; its state is
    in `pages[r]`.
    """

    counts: list[int]
    before: list[int]
    pages: list[int]
    inputs: ScanInputs
    states: np.ndarray
    batch: StepBatch
    guesses: list[int]


def random_step(
    seed: int,
    counts: list[int],
    *,
    tokens: int,
    rows: int,
    channels: int,
    size: int,
    guesses: list[int] | None = None,
) -> Step:
    """A step of `tokens` tokens and `rows` rows, the last of both unused; a ragged one unless they are as many."""
    random = np.random.default_rng(seed)
    before = [int(random.choice([0, 5])) for _ in counts]
    pages = [int(page) for page in random.permutation(np.arange(1, PAGES))[: len(counts)]]
    states = np.full((PAGES, channels, size), np.nan, np.float32)
    for page, start in zip(pages, before, strict=True):
        states[page] = random.normal(size=(channels, size)) if start else np.nan
    batch = batch_of(counts, before, pages, tokens, rows, guesses or ())
    x, dt = random.normal(size=(tokens, channels)), random.uniform(0, 1, (tokens, channels))
    b, c = random.normal(size=(2, tokens, size))
    a = -random.uniform(0.1, 2, (channels, size))
    inputs = ScanInputs(*(jnp.asarray(i, jnp.float32) for i in (x, dt, b, c, a)))
    return Step(counts, before, pages, inputs, states, batch, guesses or [0] * len(counts))


def expected(step: Step) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """y of the real tokens, and the states of each page that a row wrote."""
    x, dt, b, c, a = (np.asarray(array, np.float64) for array in step.inputs)
    y, written, ends = [], {}, np.cumsum(step.counts)
    for count, end, start, page, guesses in zip(step.counts, ends, step.before, step.pages, step.guesses, strict=True):
        h = step.states[page].astype(np.float64) if start else np.zeros_like(a)
        for t in range(end - count, end):
            h = np.exp(dt[t][:, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
            y.append((h * c[t]).sum(-1))
            if t < end - guesses:
                written[page] = h
    return np.stack(y), written


STEPS = {
    "decode": random_step(0, [1, 1, 1], tokens=4, rows=4, channels=40, size=16),
    "decode, full": random_step(1, [1, 1], tokens=2, rows=2, channels=32, size=4),
    "mixed": random_step(2, [1, 7, 4, 1, 13], tokens=32, rows=8, channels=40, size=16),
    "mixed, odd sizes": random_step(3, [5, 3], tokens=16, rows=4, channels=33, size=6),
    "guesses": random_step(5, [1, 7, 4, 2, 13], tokens=32, rows=8, channels=40, size=16, guesses=[0, 6, 0, 1, 5]),
    "a lone chunk": random_step(4, [16], tokens=16, rows=1, channels=64, size=8),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STEPS)
def test_every_row_continues_its_own_state_and_leaves_it_behind(name: str, backend: str) -> None:
    step = STEPS[name]
    before = jnp.full((LAYERS, *step.states.shape), jnp.nan, jnp.float32).at[LAYER].set(step.states)
    y, after = BACKENDS[backend](step.inputs, before, step.batch)
    states, (wanted, written) = after[LAYER], expected(step)
    np.testing.assert_allclose(y[: len(wanted)], wanted, atol=1e-5)
    for page, state in written.items():
        np.testing.assert_allclose(states[page], state, atol=1e-5)
    others = [page for page in range(1, PAGES) if page not in written]
    np.testing.assert_array_equal(states[np.array(others)], step.states[others])
    assert np.isnan(np.delete(after, LAYER, axis=0)).all(), "another layer is not written"


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_behind_a_ragged_step_is_zero(backend: str) -> None:
    step = STEPS["mixed"]
    y, _ = BACKENDS[backend](step.inputs, jnp.asarray(step.states)[None], replace(step.batch, layer=0))
    assert not np.asarray(y)[sum(step.counts) :].any()
