"""What a mixture of experts costs follows the pairs of (token, expert), not the experts there are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.architecture.model import Experts, ModelSpec
from jaxengine.model.moe import MixtureOfExperts
from jaxengine.ops.weight import Weight, WeightLayout


def on_a_cpu(values: Any) -> Weight:
    """A router, or a stack of experts' matrices."""
    return Weight(values, WeightLayout(stacked=1 if len(values.shape) > 2 else 0, flat=True))


def test_no_temporary_has_the_size_of_tokens_times_experts() -> None:
    tokens, hidden, ffn, count = 512, 64, 64, 64
    spec = ModelSpec(50, hidden, 1, 2, 2, 32, ffn, 64, experts=Experts(count, 2, ffn))
    shapes = {
        "router": (count, hidden),
        "experts_gate_up": (count, 2, ffn, hidden),
        "experts_down": (count, hidden, ffn),
    }
    arrays = {name: on_a_cpu(jax.ShapeDtypeStruct(shape, jnp.float32)) for name, shape in shapes.items()}
    module, x = MixtureOfExperts(spec, arrays.get), jax.ShapeDtypeStruct((tokens, hidden), jnp.float32)
    compiled = jax.jit(lambda module, x, tokens: module(x, tokens)).lower(module, x, tokens).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < tokens * count * ffn * 4 / 4  # 1.6 of 8.4 MB (JAX 0.10.2)


def test_padding_reaches_no_expert_and_changes_no_token() -> None:
    """Experts that only padding would choose hold NaN: none of it is seen, and padding comes out as zeros."""
    spec = ModelSpec(50, 8, 1, 2, 2, 4, 16, 64, experts=Experts(3, 1, 16))
    x = jnp.eye(3, 8)[jnp.array([0, 1, 0, 2, 2, 2, 2])]  # a token's expert is where it is 1
    arrays = {
        "router": on_a_cpu(jnp.eye(3, 8)),
        "experts_gate_up": on_a_cpu(jnp.ones((3, 2, 16, 8)).at[2].set(jnp.nan)),
        "experts_down": on_a_cpu(jnp.ones((3, 8, 16)).at[2].set(jnp.nan)),
    }
    module = MixtureOfExperts(spec, arrays.get)
    padded, bare = module(x, jnp.int32(3)), module(x[:3], jnp.int32(3))
    np.testing.assert_allclose(padded[:3], bare, rtol=1e-6)
    assert bool((bare != 0).all())
    assert not padded[3:].any()
