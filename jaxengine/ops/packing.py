"""Codes of 4 or 8 bits in words of 16, in planes: how a GPU holds a matrix of few bits.

A word has C codes: four of 4 bits, or two of 8. A tile of C·P consecutive inputs of an output is P words. Code i of
word j, counted from the lowest bits, is that of input i·P + j of the tile, so a kernel that takes code i of P words has
P consecutive inputs, in order, without moving them between threads. P is the layout's plane: at most `WIDEST`, whose
words fill a line of 128 bytes.

Bytes lie in words too because tensor cores take operands of 16 bits: what is read as 16 lies where they want it.
"""

import jax
import jax.numpy as jnp
from jax import Array

WORDS = "uint32"  # of a checkpoint, with eight codes in each
WIDEST, NARROWEST = 64, 16  # the narrowest that tensor cores multiply


def codes_in_word(bits: int) -> int:
    """How many codes of `bits` are in a word of 16."""
    return 4 if bits <= 4 else 2


def plane_of(inputs: int, group: int, bits: int = 4) -> int:
    """The widest plane of `inputs` with `group` of them to a scale (0: all); 0 if there is none. A plane has one scale,
    and a tile is a part of a group or whole groups.
    """
    plane = WIDEST
    while plane >= NARROWEST:
        tile = codes_in_word(bits) * plane
        if inputs % tile == 0 and (group or tile) % plane == 0 and (not group % tile or not tile % group):
            return plane
        plane //= 2
    return 0


def pack(codes: Array, plane: int, bits: int = 4) -> Array:
    """u16 [..., in/C] of codes of `bits` [..., in], of any integer type."""
    count = codes_in_word(bits)
    tiles = codes.astype(jnp.uint16).reshape(*codes.shape[:-1], -1, count, plane)
    words = sum(tiles[..., code, :] << (16 // count * code) for code in range(count))
    return jnp.asarray(words, jnp.uint16).reshape(*codes.shape[:-1], -1)


def unpack(words: Array, plane: int, bits: int = 4) -> Array:
    """u8 [..., in]: the codes in `words` u16 [..., in/C]."""
    width = 16 // codes_in_word(bits)
    tiles = words.reshape(*words.shape[:-1], -1, 1, plane)
    codes = tiles >> jnp.arange(0, 16, width, dtype=jnp.uint16)[:, None] & (1 << width) - 1
    return codes.astype(jnp.uint8).reshape(*words.shape[:-1], -1)


def octets(values: Array) -> Array:
    """u8: codes of 8-bit values, their bits. To int8 128 is added: a kernel needs no instruction for a sign."""
    codes = jax.lax.bitcast_convert_type(values, jnp.uint8)
    return codes ^ 128 if values.dtype == jnp.int8 else codes


def of_octets(codes: Array, dtype: str) -> Array:
    """The 8-bit values of `dtype` that have these codes."""
    return jax.lax.bitcast_convert_type(codes ^ 128 if dtype == "int8" else codes, jnp.dtype(dtype))


def codes_of_words(words: Array) -> Array:
    """u8 [..., 8n]: the codes in a checkpoint's `words` u32 [..., n], the first in the lowest bits of each."""
    codes = words[..., None] >> jnp.arange(0, 32, 4, dtype=jnp.uint32) & 15
    return codes.astype(jnp.uint8).reshape(*words.shape[:-1], -1)
