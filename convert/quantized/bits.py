"""Codes of a few bits, packed in words as a little-endian stream: the first code lies in the lowest bits."""

import numpy as np

BITS = (2, 3, 4, 8)
WORD = 32


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """u8 [n, w·32/bits]: the codes in `words` i32 [n, w]. 3 bits run over the ends of words."""
    octets = np.ascontiguousarray(words).view(np.uint8)  # [n, 4w]
    if bits == 8:
        return octets
    if bits == 4:
        return nibbles(octets)
    if bits == 3:
        stream = np.unpackbits(octets, axis=1, bitorder="little")
        stream = stream[:, : stream.shape[1] // bits * bits].reshape(len(octets), -1, bits)
        return (stream << np.arange(bits, dtype=np.uint8)).sum(2, dtype=np.uint8)
    codes = np.empty((len(octets), octets.shape[1], 8 // bits), np.uint8)
    for place in range(8 // bits):
        codes[..., place] = octets >> np.uint8(bits * place)
    codes &= np.uint8((1 << bits) - 1)
    return codes.reshape(len(octets), -1)


def nibbles(octets: np.ndarray) -> np.ndarray:
    """u8 [n, 2m] of bytes [n, m], the low half first."""
    codes = np.empty((*octets.shape, 2), np.uint8)
    np.bitwise_and(octets, 15, out=codes[..., 0])
    np.right_shift(octets, 4, out=codes[..., 1])
    return codes.reshape(len(octets), -1)


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
