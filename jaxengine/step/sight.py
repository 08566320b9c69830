"""What a model that sees must know of a sequence's tokens beside ids and positions: how their keys turn, and how far
they see. It follows from the prompt's images alone, so it is computed when a sequence takes a slot.

Behind a prompt's images rope positions differ from the tokens' own by one number, the shift. Without images they are
the tokens' own.
Legend: P tokens of the prompt.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from jaxengine.architecture.rope_positions import rope_positions
from jaxengine.architecture.vision import Vision
from jaxengine.request.sequence import Sequence
from jaxengine.step.buffer import Sight


@dataclass(frozen=True)
class SequenceSight:
    """Of one sequence. Behind what the arrays hold, rope positions are shifted and a token sees what is up to it.

    rope: i32 [3, P], by time, row and column; empty where they are the tokens' own.
    shift: of the rope positions behind that.
    horizon: i32 [P], the last key that a token sees and one more; empty where it is its own.
    """

    rope: np.ndarray
    shift: int
    horizon: np.ndarray

    @classmethod
    def of(cls, sequence: Sequence, vision: Vision | None, sight: Sight) -> Self:
        """`sight` is that of a step with prompts."""
        rope, shift = NOTHING.reshape(3, 0), 0
        if vision is not None and sight.axes and sequence.images:
            pictures = [(each.image.offset, each.image.shape) for each in sequence.images]
            rope, shift = rope_positions(vision, sequence.prompt_length, pictures)
        horizon = _horizon(vision, sequence) if vision is not None and sight.horizon else NOTHING
        return cls(rope, shift, horizon)


NOTHING = np.empty(0, np.int32)
BLINDFOLD = SequenceSight(NOTHING.reshape(3, 0), 0, NOTHING)


def _horizon(vision: Vision, sequence: Sequence) -> np.ndarray:
    """i32 [P]: the end of the image that a token belongs to, or of the prompt."""
    if vision.horizon == "prompt":
        return np.full(sequence.prompt_length, sequence.prompt_length, np.int32)
    horizon = np.zeros(sequence.prompt_length, np.int32)
    for placed in sequence.images:
        horizon[placed.image.offset : placed.image.end] = placed.image.end
    return horizon
