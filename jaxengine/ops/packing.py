"""Four codes of 4 bits in a word of 16, in planes: how a GPU holds a matrix of 4-bit codes.

A tile of 4·P consecutive inputs of an output is P words. Nibble i of word j is the code of input i·P + j of the tile,
so a kernel that takes nibble i of P words has P consecutive inputs, in order, without moving them between threads. P
is the layout's plane: at most `WIDEST`, whose words fill a line of 128 bytes, and a part of a group, so that a plane
has one scale.
"""

import math

import jax.numpy as jnp
from jax import Array

CODES = 4  # in a word
WORDS = "uint32"  # of a checkpoint, with eight codes in each
WIDEST, NARROWEST = 64, 16  # the narrowest that tensor cores multiply


def plane_of(inputs: int, group: int) -> int:
    """The widest plane of `inputs` with `group` of them to a scale (0: all); 0 if there is none."""
    plane = math.gcd(WIDEST, group or WIDEST)
    while plane >= NARROWEST and inputs % (CODES * plane):
        plane //= 2
    return plane if plane >= NARROWEST else 0


def pack(codes: Array, plane: int) -> Array:
    """u16 [..., in/4] of codes 0 … 15 [..., in], of any integer type."""
    tiles = codes.astype(jnp.uint16).reshape(*codes.shape[:-1], -1, CODES, plane)
    words = sum(tiles[..., nibble, :] << (4 * nibble) for nibble in range(CODES))
    return jnp.asarray(words, jnp.uint16).reshape(*codes.shape[:-1], -1)


def unpack(words: Array, plane: int) -> Array:
    """u8 [..., in]: the codes in `words` u16 [..., in/4]."""
    tiles = words.reshape(*words.shape[:-1], -1, 1, plane)
    codes = tiles >> jnp.arange(0, 16, 4, dtype=jnp.uint16)[:, None] & 15
    return codes.astype(jnp.uint8).reshape(*words.shape[:-1], -1)


def codes_of_words(words: Array) -> Array:
    """u8 [..., 8n]: the codes in a checkpoint's `words` u32 [..., n], the first in the lowest bits of each."""
    codes = words[..., None] >> jnp.arange(0, 32, 4, dtype=jnp.uint32) & 15
    return codes.astype(jnp.uint8).reshape(*words.shape[:-1], -1)
