"""Rotating a step's queries and keys and writing its keys and values to the pages, in plain JAX.

Where several layers share a place of a page, each sees the cache as one of its own heads, with as many times the pages
as there are parts: part s of n of page p is page n·p + s. That is another shape of the same memory, on each device of
its own heads, so no array is copied and no kernel knows of it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.ops.batch import RopeTables, StepBatch
from jaxengine.ops.spec import AttentionSpec

INTEGERS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "int8"}
FLOATS = {integer: jnp.dtype(float) for float, integer in INTEGERS.items()}


def storage_dtype(dtype: str) -> str:
    """The dtype in which a CPU stores a cache of `dtype`: integers of the same bits for floats that XLA cannot compute.

    XLA casts a whole array of such floats to write or read a few: a decode step of 16 rows took 680 ms (bf16) and
    830 ms (e4m3) a layer with 186k tokens of cache, and 2 and 3 ms with integers (JAX 0.10.2, 2 cores).
    """
    return INTEGERS.get(dtype, dtype)


def as_floats(x: Array) -> Array:
    """Elements of a cache as floats, whatever `storage_dtype` they are stored in."""
    dtype = FLOATS.get(x.dtype.name)
    return x if dtype is None else jax.lax.bitcast_convert_type(x, dtype)


def as_layer_sees(keys: Array, values: Array, batch: StepBatch, heads: int, dim: int) -> tuple[Array, Array, StepBatch]:
    """Caches [L, pages, page_size, …] as a layer of `heads` of `dim` sees them, [L, pages · n, page_size, K, D], and
    the batch with its part of each page, of n.
    """
    if batch.part is None:
        return keys, values, batch
    layers, pages, page_size, *place = keys.shape
    parts = place[0] * place[1] // (heads * dim)
    shape = (layers, pages * parts, page_size, heads, dim)
    own = jax.lax.optimization_barrier(jnp.asarray(batch.part, jnp.int32))  # for `unfolded`'s reason
    page, tables = batch.page * parts + own, batch.tables * parts + own
    return keys.reshape(shape), values.reshape(shape), dataclasses.replace(batch, page=page, tables=tables, part=None)


def split(qkv: Array, rope_tables: RopeTables | None, spec: AttentionSpec) -> tuple[Array, Array, Array]:
    """qkv [T, K, G+2, D] → q [T, K, G, D], k and v [T, K, D], queries and keys rotated; as they are cached."""
    if spec.latent:
        key = qkv[:, :, -1]
        return qkv[:, :, :-1], key[..., : spec.latent], key[..., spec.latent :]
    q_and_k = qkv[:, :, :-1]
    if rope_tables is not None:
        q_and_k = rotated(q_and_k, rope_tables)
    return q_and_k[:, :, :-1], q_and_k[:, :, -1], qkv[:, :, -1]


def as_attended(keys: Array, values: Array, spec: AttentionSpec) -> tuple[Array, Array]:
    """Keys and values [.., D] of what is cached of them."""
    return (jnp.concatenate([keys, values], axis=-1), keys) if spec.latent else (keys, values)


def rotated(x: Array, rope_tables: RopeTables) -> Array:
    """`x` [T, …, D] rotated by its token's entries of `rope_tables`, in f32 (Su et al. 2021, arXiv 2104.09864).

    Both halves are one product: XLA computes what is concatenated an element at a time. On a CPU 256 tokens of 9 + 3
    heads of 64 took 0.02 ms so and 0.23 ms in halves that are joined (JAX 0.10.2).
    """
    half = rope_tables.cos.shape[1]
    shape = (x.shape[0], *(1,) * (x.ndim - 1), half)
    cos, sin = rope_tables.cos.reshape(shape), rope_tables.sin.reshape(shape)
    halves = x[..., : 2 * half].astype(jnp.float32).reshape(*x.shape[:-1], 2, half)
    sign = jnp.array([[-1.0], [1.0]])
    turned = (halves * cos + halves[..., ::-1, :] * (sin * sign)).reshape(*x.shape[:-1], 2 * half).astype(x.dtype)
    return turned if x.shape[-1] == 2 * half else jnp.concatenate([turned, x[..., 2 * half :]], axis=-1)


def write(cache: Array, x: Array, batch: StepBatch) -> Array:
    """`cache` [L, pages, page_size, K, D] with each token's `x` [T, K, D] written to the layer's part of its page."""
    return cache.at[batch.layer, batch.page, batch.offset].set(stored(x, cache.dtype), mode="drop")


def stored(x: Array, dtype: jnp.dtype) -> Array:
    """`x` in the cache's dtype. A plain cast to an 8-bit float turns what is out of range into NaN; this saturates."""
    if jnp.dtype(dtype).name in FLOATS:
        return jax.lax.bitcast_convert_type(stored(x, FLOATS[jnp.dtype(dtype).name]), dtype)
    if jnp.dtype(dtype).itemsize > 1:
        return x.astype(dtype)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -limit, limit).astype(dtype)
