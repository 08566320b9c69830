"""What a step does with its own queries, keys and values before they meet the pages, in plain JAX."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.ops.batch import RopeTables, StepBatch

INTEGERS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "int8"}
FLOATS = {integer: jnp.dtype(float) for float, integer in INTEGERS.items()}


def storage_dtype(dtype: str) -> str:
    """The type of a CPU's cache of `dtype`: integers of the same bits for floats that XLA does not compute with there.

    Of such floats it casts the whole array to write or read a few: a decode step of 16 rows took 680 ms (bf16) and
    830 ms (e4m3) a layer with 186k tokens of cache, and 2 and 3 ms with integers (JAX 0.10.2, 2 cores).
    """
    return INTEGERS.get(dtype, dtype)


def as_floats(x: Array) -> Array:
    """What a cache holds, as floats."""
    dtype = FLOATS.get(x.dtype.name)
    return x if dtype is None else jax.lax.bitcast_convert_type(x, dtype)


def split(qkv: Array, angles: RopeTables | None) -> tuple[Array, Array, Array]:
    """qkv [T, K, G+2, D] → q [T, K, G, D], k and v [T, K, D], queries and keys rotated."""
    q_and_k = qkv[:, :, :-1]
    if angles is not None:
        q_and_k = rotated(q_and_k, angles)
    return q_and_k[:, :, :-1], q_and_k[:, :, -1], qkv[:, :, -1]


def rotated(x: Array, angles: RopeTables) -> Array:
    """`x` [T, …, D] turned by its token's angles, in f32 (Su et al. 2021, arXiv 2104.09864)."""
    half = angles.cos.shape[1]
    shape = (x.shape[0], *(1,) * (x.ndim - 2), half)
    cos, sin = angles.cos.reshape(shape), angles.sin.reshape(shape)
    wide = x[..., : 2 * half].astype(jnp.float32)
    low, high = wide[..., :half], wide[..., half:]
    turned = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)
    return turned if x.shape[-1] == 2 * half else jnp.concatenate([turned, x[..., 2 * half :]], axis=-1)


def write(cache: Array, x: Array, batch: StepBatch) -> Array:
    """`cache` [pages, page_size, K, D] with every token's `x` [T, K, D] in its place."""
    return cache.at[batch.page, batch.offset].set(stored(x, cache.dtype), mode="drop")


def stored(x: Array, dtype: jnp.dtype) -> Array:
    """`x` as the cache holds it. A plain cast to an 8-bit float makes NaN of what is out of range; this saturates."""
    if jnp.dtype(dtype).name in FLOATS:
        return jax.lax.bitcast_convert_type(stored(x, FLOATS[jnp.dtype(dtype).name]), dtype)
    if jnp.dtype(dtype).itemsize > 1:
        return x.astype(dtype)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -limit, limit).astype(dtype)
