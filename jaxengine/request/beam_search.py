"""What a request asks for that wants the likeliest answers instead of sampled ones."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxengine.rpc.limits import MAX_BEAMS, MAX_LENGTH_PENALTY

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """Fields and their meaning are those of `generate(num_beams=…)` of transformers.

    width: beams that are kept in each step (`num_beams`).
    answers: how many of the best the request is told (`num_return_sequences`); 0 = all.
    length_penalty: a finished answer of n generated tokens has the score sum(logprobs) / n^length_penalty.
    early_stopping: the search ends once `width` answers are finished (True), once no beam of its present length is
        better than the worst of them (False), or once no beam can be, however long it grows ("never").

    Raises:
        ValueError: a value is out of range; the message names field, value and limit.
    """

    width: int
    answers: int = 0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_BEAMS:
            raise ValueError(f"beam search's width must be in [1, {MAX_BEAMS}], got {self.width}")
        if not 0 <= self.answers <= self.width:
            raise ValueError(f"beam search's answers must be in [0, width {self.width}], got {self.answers}")
        if not abs(self.length_penalty) <= MAX_LENGTH_PENALTY:  # NaN fails too
            most = f"[-{MAX_LENGTH_PENALTY}, {MAX_LENGTH_PENALTY}]"
            raise ValueError(f"length_penalty must be in {most}, got {self.length_penalty}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f'early_stopping must be True, False or "never", got {self.early_stopping!r}')

    def score(self, total: float, length: int) -> float:
        """Of an answer of `length` tokens whose logprobs sum up to `total`."""
        return total / length**self.length_penalty if total > -math.inf else total
