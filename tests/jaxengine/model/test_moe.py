"""Blocks of pairs: every pair lies in exactly one block, of its own expert; work and memory follow the pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.model.moe import MAX_BLOCK, MixtureOfExperts, blocks
from jaxengine.model.spec import Experts, ModelSpec


@pytest.mark.parametrize(("size", "count"), [(1, 8), (8, 8), (9, 8), (100, 8), (64, 60), (2000, 4), (600, 128)])
@pytest.mark.parametrize("skew", ["even", "one expert", "random"])
def test_each_pair_lies_once_in_a_block_of_its_expert(size: int, count: int, skew: str) -> None:
    drawn = {"even": np.arange(size) % count, "one expert": np.full(size, count - 1)}
    expert = drawn.get(skew, np.random.default_rng(size).integers(0, count, size))
    pairs, of, slot = (np.asarray(array) for array in blocks(jnp.asarray(expert), count))
    held = pairs[pairs < size]
    assert sorted(held) == list(range(size))
    np.testing.assert_array_equal(pairs.reshape(-1)[slot], np.arange(size))
    block, row = np.nonzero(pairs < size)
    np.testing.assert_array_equal(expert[pairs[block, row]], of[block])


@pytest.mark.parametrize(("size", "count"), [(1, 8), (64, 60), (2000, 4), (600, 128), (16384, 128)])
def test_blocks_are_at_most_the_pairs_and_one_for_each_expert(size: int, count: int) -> None:
    pairs, of, _ = blocks(jnp.zeros(size, jnp.int32), count)
    rows = pairs.shape[1]
    assert rows <= MAX_BLOCK and len(of) == len(pairs) <= size // rows + count
    assert pairs.size <= 3 * max(size, count)


def test_no_temporary_has_the_size_of_tokens_times_experts() -> None:
    tokens, hidden, ffn, count = 512, 64, 64, 64
    spec = ModelSpec(50, hidden, 1, 2, 2, 32, ffn, 64, experts=Experts(count, 2, ffn))
    shapes = {
        "router": (hidden, count),
        "experts_gate_up": (count, hidden, 2, ffn),
        "experts_down": (count, ffn, hidden),
    }
    arrays = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    module, x = MixtureOfExperts(spec, arrays.get, "cpu"), jax.ShapeDtypeStruct((tokens, hidden), jnp.float32)
    compiled = jax.jit(lambda module, x: module(x)).lower(module, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < tokens * count * ffn * 4 / 4  # 1.6 of 8.4 MB (JAX 0.10.2)
