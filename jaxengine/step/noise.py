"""Counter-based random numbers: token number p of a request with seed s gets those of key (s, p), whoever shares its
batch and however it was scheduled.

Legend: N samples, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.step.buffer import SampleFields


def gumbel(samples: SampleFields, vocab: int) -> Array:
    """Gumbel noise f32 [N, V] of key (seed, position)."""
    return jax.vmap(lambda key: jax.random.gumbel(key, (vocab,), jnp.float32))(_keys(samples))


def chance(samples: SampleFields) -> Array:
    """f32 [N] in [0, 1), of key (seed, position, 1)."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 1)))(_keys(samples))


def _keys(samples: SampleFields) -> Array:
    seeds = jax.lax.bitcast_convert_type(jnp.stack([samples.seed_high, samples.seed_low], axis=-1), jnp.uint32)

    def one(seed: Array, position: Array) -> Array:
        return jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)

    return jax.vmap(one)(seeds, samples.position)
