"""The cache arrays of a layer: the shapes that are allocated, counted and split over devices.

A page of an attention layer holds the keys and values of `page_size` tokens. A page of a state-space layer holds all
that the layer keeps of one sequence, however long: the last inputs of its convolution, and its states, always in f32.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxengine.architecture.model import ModelSpec


class CacheArray(NamedTuple):
    """An array to be allocated; `axes` names its dimensions, as in `Parameter`."""

    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str | None, ...]


def layer_cache(spec: ModelSpec, pages: int, page_size: int, dtype: str) -> tuple[CacheArray, CacheArray]:
    """The two cache arrays of a layer; `dtype` is that of keys and values."""
    if spec.state_space:
        space = spec.state_space
        inputs = CacheArray((pages, space.kernel - 1, space.channels), jnp.dtype(dtype), (None, None, "channels"))
        states = CacheArray((pages, space.channels, space.size), jnp.dtype(jnp.float32), (None, "channels", None))
        return inputs, states
    shape = (pages, page_size, spec.num_kv_heads, spec.head_dim)
    keys = CacheArray(shape, jnp.dtype(dtype), (None, None, "kv_heads", None))
    return keys, keys
