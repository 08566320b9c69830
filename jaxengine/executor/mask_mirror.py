"""What the device knows of each mask, so that a mask that has not changed is not sent again.

Inside a string most tokens leave the mask as it was.
"""

import numpy as np

from jaxengine.grammar.mask import words


class MaskMirror:
    """The host's copy of `SamplerState.mask`: of each slot, of the sink, and of so many guesses."""

    def __init__(self, slots: int, vocab_size: int, guesses: int = 0) -> None:
        self._masks = np.full((slots + 1 + guesses, words(vocab_size)), -1, np.int32)
        self._sink = slots

    def reset(self) -> None:
        """The device's masks are new and allow everything."""
        self._masks[:] = -1

    def take_changed(self, slots: list[int], masks: np.ndarray) -> list[int]:
        """The `slots` whose mask, a row of i32 [len(slots), W] each, the device does not have. It gets them now."""
        changed = [slot for slot, mask in zip(slots, masks, strict=True) if not np.array_equal(self._masks[slot], mask)]
        self._masks[slots] = masks
        return changed

    def block(self, slots: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `size` of `slots`, i32 [size], and their masks, i32 [size, W], padded with the sink's."""
        chosen = np.full(size, self._sink, np.int32)
        chosen[: len(slots)] = slots[:size]
        return chosen, self._masks[chosen]

    def padding(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        return self.block([], size)
