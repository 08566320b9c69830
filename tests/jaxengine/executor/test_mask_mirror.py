"""Blocks that the mirror hands out, written in order, make the device's masks those that steps asked for."""

import numpy as np

from jaxengine.executor.mask_mirror import MaskMirror
from jaxengine.grammar.mask import words

SLOTS, VOCAB = 5, 70


def random_masks(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, (count, words(VOCAB)), np.int32)


def test_written_blocks_give_the_masks_and_padding_goes_to_the_sink() -> None:
    mirror, device = MaskMirror(SLOTS, VOCAB), np.full((SLOTS + 1, words(VOCAB)), -1, np.int32)
    masks = random_masks(3, 0)
    changed = mirror.take_changed([4, 0, 2], masks)
    for size in (2, 4):
        slots, block = mirror.block(changed, size)
        device[slots] = block
        changed = changed[size:]
    assert not changed
    assert np.array_equal(device[[4, 0, 2]], masks)
    assert (device[[1, 3, SLOTS]] == -1).all()


def test_a_mask_that_the_device_has_is_not_sent_again() -> None:
    mirror = MaskMirror(SLOTS, VOCAB)
    masks = random_masks(2, 1)
    assert mirror.take_changed([1, 3], masks) == [1, 3]
    masks[1] = random_masks(1, 2)
    assert mirror.take_changed([1, 3], masks) == [3]
    mirror.reset()
    assert mirror.take_changed([1, 3], masks) == [1, 3]
