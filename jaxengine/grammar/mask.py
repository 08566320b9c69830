"""A mask: one bit for each id of the vocabulary, in i32 words, the lowest bit first; 1 = the id may come next."""

import numpy as np

ALL = np.int32(-1)  # a word that allows its 32 ids


def words(ids: int) -> int:
    """How many words a mask of `ids` ids has."""
    return -(-ids // 32)


def allow(mask: np.ndarray, id: int) -> None:
    """Set the bit of `id` in i32 [W]."""
    mask.view(np.uint32)[id // 32] |= np.uint32(1) << np.uint32(id % 32)


def forbid(mask: np.ndarray, id: int) -> None:
    """Clear the bit of `id` in i32 [W]."""
    mask.view(np.uint32)[id // 32] &= ~(np.uint32(1) << np.uint32(id % 32))
