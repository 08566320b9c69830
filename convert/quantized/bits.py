"""Codes of a few bits, packed in words as a little-endian stream: the first code lies in the lowest bits."""

from collections.abc import Iterator

import numpy as np

BITS = (2, 3, 4, 8)
WORD = 32
CACHED = 2**16  # bytes


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """u8 [n, w·32/bits]: the codes in `words` i32 [n, w]. 3 bits run over the ends of words."""
    octets = np.ascontiguousarray(words).view(np.uint8)  # [n, 4w]
    if bits == 8:
        return octets
    if bits == 4:
        return nibbles(octets)
    octets = np.pad(octets, ((0, 0), (0, -octets.shape[1] % bits)))
    eights = octets.reshape(len(octets), -1, bits)  # the bytes of eight codes
    wide = np.zeros(eights.shape[:2], np.uint32)
    for place in range(bits):
        wide |= eights[..., place].astype(np.uint32) << np.uint32(8 * place)
    codes = np.empty((*wide.shape, 8), np.uint8)
    for place in range(8):
        codes[..., place] = wide >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
    return codes.reshape(len(octets), -1)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """i32 [n, m·bits/32] of u8 codes [n, m], as `unpack` reads them; m is a multiple of 32."""
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & np.uint8(1)  # [n, m, bits]
    return np.packbits(stream.reshape(len(codes), -1), axis=1, bitorder="little").view(np.int32)


def nibbles(octets: np.ndarray) -> np.ndarray:
    """u8 [n, 2m] of bytes [n, m], the low half first."""
    pairs = np.empty(octets.shape, np.uint16)  # of the codes of a byte
    for rows in blocks(octets.shape):
        np.left_shift(octets[rows], 4, out=pairs[rows], dtype=np.uint16)
        pairs[rows] |= octets[rows]
        pairs[rows] &= np.uint16(0x0F0F)
    return pairs.view(np.uint8)


def turned(octets: np.ndarray) -> np.ndarray:
    """u8 [n, m]: the halves of each byte in the other order."""
    made = np.empty(octets.shape, np.uint8)
    for rows in blocks(octets.shape):
        np.left_shift(octets[rows], 4, out=made[rows])
        made[rows] |= octets[rows] >> np.uint8(4)
    return made


def blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Rows of an array so that few of its bytes, which the processor's caches hold, are worked on at a time."""
    step = max(1, CACHED // max(1, shape[1]))
    return (slice(first, first + step) for first in range(0, shape[0], step))


def packed(count: int, bits: int) -> int:
    """How many words hold `count` codes."""
    return -(-count * bits // WORD)


def whole_words(columns: slice, bits: int) -> tuple[slice, slice]:
    """The words of a row in which the codes `columns` lie, and where these lie among the codes of the words.

    Ranges of words begin at a multiple of 32 codes, where codes of every width begin a word.
    """
    first = columns.start // WORD * WORD
    words = slice(first * bits // WORD, -(-columns.stop * bits // WORD))
    if bits == 3:
        words = slice(words.start, -(-columns.stop // WORD) * bits)
    return words, slice(columns.start - first, columns.stop - first)
