"""Of a row's last inputs a convolution keeps those in front of its guesses."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.model.convolution import Convolution
from tests.jaxengine.ops.state_steps import LAYER, LAYERS, batch_of

CHANNELS, TAPS, SLOTS = 5, 4, 6


@pytest.mark.parametrize("guesses", [[0, 0, 0], [1, 2, 4], [6, 3, 0]])
def test_what_is_kept_is_what_a_step_without_guesses_keeps(guesses: list[int]) -> None:
    counts, before, slots = [7, 4, 5], [9, 1, 0], [3, 1, 4]
    random = np.random.default_rng(0)
    rows = [random.normal(size=(count, CHANNELS)) for count in counts]
    cache = jnp.asarray(random.normal(size=(LAYERS, SLOTS, TAPS - 1, CHANNELS)), jnp.float32)
    convolution = Convolution(jnp.asarray(random.normal(size=(CHANNELS, TAPS)), jnp.float32), None)

    def run(rows: list[np.ndarray], guesses: list[int] | None = None) -> tuple[list[np.ndarray], jnp.ndarray]:
        of = [len(row) for row in rows]
        u = np.zeros((32, CHANNELS), np.float32)
        u[: sum(of)] = np.concatenate(rows)
        y, after = convolution(jnp.asarray(u), cache, batch_of(of, before, slots, 32, 4, guesses or ()))
        return np.split(np.asarray(y)[: sum(of)], np.cumsum(of)[:-1]), after

    made, kept = run(rows, guesses)
    shorter, expected = run([row[: len(row) - count] for row, count in zip(rows, guesses, strict=True)])
    np.testing.assert_array_equal(kept[LAYER, jnp.array(slots)], expected[LAYER, jnp.array(slots)])
    whole, _ = run(rows)
    for ours, all_of_it, first in zip(made, whole, shorter, strict=True):
        np.testing.assert_array_equal(ours, all_of_it)
        np.testing.assert_allclose(ours[: len(first)], first, atol=1e-6)
