"""States are read and written in place: no step of a CPU copies what it keeps of other sequences."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.model.convolution import Convolution
from jaxengine.ops import places
from jaxengine.ops.batch import DeltaInputs, ScanInputs, StepBatch
from jaxengine.ops.delta_rule import reference as delta_rule
from jaxengine.ops.scan import reference as scan
from tests.jaxengine.ops.state_steps import LAYERS, batch_of

SLOTS, CHANNELS = 9, 2048  # of few channels XLA copies nothing worth mentioning, but it does
STEPS = {
    "one row": batch_of([1], [5], [3], 1, 1),
    "four rows": batch_of([1] * 4, [5] * 4, [3, 1, 2, 4], 4, 4),
    "a prompt": batch_of([20], [0], [3], 32, 4),
    "drafts": batch_of([5, 4], [5, 5], [3, 1], 32, 4, guesses=[3, 2]),
}


def copied(function: Any, inputs: Any, cache: jax.Array, batch: StepBatch) -> list[str]:
    """The copies of all of `cache` in what a CPU runs for `function`, which gives it back changed."""
    step = jax.jit(function, donate_argnums=1).lower(inputs, cache, batch)
    shape = ",".join(map(str, cache.shape))
    return re.findall(rf"f32\[{shape}\]\S* (?:copy|transpose)\([^)]*\)", step.compile().as_text())


@pytest.mark.parametrize("name", STEPS)
def test_nothing_else_is_copied(name: str) -> None:
    batch = STEPS[name]
    tokens = len(batch.position)

    def array(*shape: int) -> jax.Array:
        return jnp.ones(shape, jnp.float32)

    keys, values, each = array(tokens, 2, 64), array(tokens, 2, 2, 64), array(tokens, 2, 2)
    delta = DeltaInputs(keys, keys, values, -each, each)
    scanned = ScanInputs(*[array(tokens, CHANNELS)] * 2, *[array(tokens, 16)] * 2, -array(CHANNELS, 16))
    convolution = Convolution(array(CHANNELS, 4), None)
    assert not copied(delta_rule, delta, array(LAYERS, SLOTS, 2, 2, 64, 64), batch)
    assert not copied(scan, scanned, array(LAYERS, SLOTS, CHANNELS, 16), batch)
    assert not copied(convolution, array(tokens, CHANNELS), array(LAYERS, SLOTS, 3, CHANNELS), batch)


def test_a_place_that_there_is_not_is_not_written() -> None:
    cache = jnp.arange(2.0 * SLOTS).reshape(2, SLOTS, 1)
    for rows in ([SLOTS], [3, SLOTS]):
        place = jnp.asarray(rows, jnp.int32)
        after = places.write(cache, 1, place, jnp.full((len(rows), 1), -1.0))
        expected = np.array(cache)
        expected[1, [row for row in rows if row < SLOTS]] = -1
        np.testing.assert_array_equal(after, expected)
        np.testing.assert_array_equal(places.read(cache, 1, place)[:, 0], cache[1, np.minimum(rows, SLOTS - 1), 0])
