"""The cache arrays: the shapes that are allocated, counted and split over devices.

All layers that a page spans lie in the same two arrays, one behind the other. A step gives up every cache and gets it
back, and each array of them costs the host some 3 µs (CPU; 2.4 times that beside an H200): two arrays a layer were a
good part of a small step.

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


def cache_arrays(spec: ModelSpec, layers: int, pages: int, page_size: int, dtype: str) -> tuple[CacheArray, CacheArray]:
    """The two caches of so many layers; `dtype` is that of keys and values."""
    if spec.state_space:
        space = spec.state_space
        inputs = CacheArray(
            (layers, pages, space.kernel - 1, space.channels), jnp.dtype(dtype), (None, None, None, "channels")
        )
        states = CacheArray(
            (layers, pages, space.channels, space.size), jnp.dtype(jnp.float32), (None, None, "channels", None)
        )
        return inputs, states
    shape = (layers, pages, page_size, spec.num_kv_heads, spec.head_dim)
    keys = CacheArray(shape, jnp.dtype(dtype), (None, None, None, "kv_heads", None))
    return keys, keys
