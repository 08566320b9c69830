"""The cache arrays: the shapes that are allocated, counted and split over devices.

All layers that a page spans lie in the same two arrays, one behind the other. A step donates every cache and gets it
back, and each array of them costs the host some 3 µs (CPU; 2.4 times that beside an H200): two arrays a layer were a
good part of a small step. Only where kernels could not number the elements of so large an array there are more.

A page of an attention layer holds the keys and values of `page_size` tokens. Where these are made of latents, it holds
latents in the place of keys, and in that of values the part of keys that turns. Where layers differ in the sizes of
their heads, several may share a place of a page (`architecture/layer_groups.py`), and see the array in another shape
(`ops/cache.py`): it is the same memory. A page of a state-space layer holds all
that the layer keeps of one sequence, however long: the last inputs of its convolution, and its states, always in f32.
Where layers of attention stand among layers that keep states, these have arrays of their own, behind the others, with a
place for each slot instead of pages.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxengine.architecture.layer_groups import place_size
from jaxengine.architecture.model import ModelSpec

ADDRESSES = 2**31  # elements of one byte each, up to which kernels number them in 32 bits


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
    (heads, width), latent = place_size(spec), spec.attention.latent
    widths = (latent.rank, latent.rope_dim) if latent else (width, width)
    axes = (None, None, None, "kv_heads", None)
    keys, values = (CacheArray((layers, pages, page_size, heads, each), jnp.dtype(dtype), axes) for each in widths)
    return keys, values


def slot_arrays(spec: ModelSpec, slots: int, dtype: str) -> tuple[CacheArray, ...]:
    """What all layers that keep states hold of each slot: the last inputs of their convolutions, in `dtype`, which is
    that of activations, and their states; nothing where no layer does.
    """
    layers = len(spec.recurrent_layers)
    return tuple(
        CacheArray((layers, slots, *shape), jnp.dtype("float32" if states else dtype), (None, None, *axes))
        for shape, axes, states in spec.kept
    )


def layers_of_array(spec: ModelSpec, layers: int, pages: int, page_size: int, dtype: str, devices: int) -> int:
    """How many of `layers` lie in an array, at most, so that kernels can address it.

    Pallas numbers the elements of an array with 32 bits, signed, up to 4 GiB, and with 64 beyond
    (`_compute_offsets_from_indices` of its Triton lowering, JAX 0.10.2 to 0.12.0). That is right for elements of two
    bytes or more, and wrong for elements of one byte in arrays of 2 to 4 GiB.
    """
    each = byte_elements(spec, pages, page_size, dtype, devices)
    between = ADDRESSES < layers * each <= 2 * ADDRESSES
    return max(1, ADDRESSES // each) if between else layers


def byte_elements(spec: ModelSpec, pages: int, page_size: int, dtype: str, devices: int) -> int:
    """Elements on each device in a layer's array whose elements are of one byte; 0 if neither's are."""
    arrays = cache_arrays(spec, 1, pages, page_size, dtype)
    return max((math.prod(each.shape) // devices for each in arrays if each.dtype.itemsize == 1), default=0)


class LayerCaches:
    """The caches of a step while its layers write them: arrays in pairs, each of the same number of layers but the
    last, which may have fewer. The last `kept` are of the layers that keep states.
    """

    def __init__(self, arrays: Sequence[Array], kept: int = 0) -> None:
        self.arrays = list(arrays)
        self.paged = len(self.arrays) - kept

    def of_layer(self, layer: int) -> tuple[Array, Array, int]:
        """The pair where `layer` lies, modulo how many layers there are, and its number in it."""
        first, number = self._place(layer)
        return self.arrays[first], self.arrays[first + 1], number

    def replace(self, layer: int, keys: Array, values: Array) -> None:
        """Put `keys` and `values` in the place of the pair where `layer` lies."""
        first, _ = self._place(layer)
        self.arrays[first : first + 2] = keys, values

    @property
    def kept(self) -> tuple[Array, ...]:
        return tuple(self.arrays[self.paged :])

    def replace_kept(self, arrays: Sequence[Array]) -> None:
        self.arrays[self.paged :] = arrays

    def _place(self, layer: int) -> tuple[int, int]:
        sizes = [keys.shape[0] for keys in self.arrays[: self.paged : 2]]
        pair, number = divmod(layer % sum(sizes), sizes[0])
        return 2 * pair, number
