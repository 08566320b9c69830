"""The buckets that options imply."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from jaxengine.device import CPU, DeviceTraits
from jaxengine.options.table import EngineOptions
from jaxengine.startup.defaults import derive_limits
from jaxengine.step import functions
from tests.shapes import H200, LLAMA_8B

WIDTH, VOCAB = 8, 40


@pytest.mark.parametrize("device", [CPU, H200], ids=["cpu", "h200"])
def test_every_step_that_verifies_can_be_compiled_whatever_the_limits(device: DeviceTraits) -> None:
    sizes: set[int] = set()
    for rows, drafts, budget in itertools.product((1, 2, 3, 5, 9, 40, 200), (1, 3, 5, 15), (None, 1, 33, 70)):
        options = EngineOptions(max_batch_size=rows, speculate=drafts, max_batch_prefill_tokens=budget)
        limits = derive_limits(options, LLAMA_8B, device)
        assert limits.verify_buckets[-1] <= limits.token_budget
        assert limits.verify_buckets[0] > 1 and len(set(limits.verify_buckets)) == len(limits.verify_buckets)
        sizes |= {*limits.verify_buckets}
    for tokens in sizes:
        assert _scored(tokens).shape[0] == tokens


def test_no_step_verifies_more_than_all_rows_can_have() -> None:
    def buckets(rows: int, drafts: int) -> tuple[int, ...]:
        return derive_limits(EngineOptions(max_batch_size=rows, speculate=drafts), LLAMA_8B, CPU).verify_buckets

    assert buckets(1, 1) == (4,)
    assert buckets(1, 7) == (4, 8)
    assert buckets(3, 15) == buckets(32, 15) == (4, 8, 16, 32, 64)
    assert buckets(32, 0) == ()


def _scored(tokens: int) -> jax.ShapeDtypeStruct:
    """What a step of `tokens` tokens scores. Not every number of tokens can be cut into its blocks."""
    head = jnp.ones((WIDTH, VOCAB))
    hidden, target = jax.ShapeDtypeStruct((tokens, WIDTH), jnp.float32), jax.ShapeDtypeStruct((tokens,), jnp.int32)
    return jax.eval_shape(lambda hidden, target: functions.score(3, lambda x: x @ head, hidden, target), hidden, target)  # type: ignore
