"""What a request asks for that wants the likeliest answers instead of sampled ones."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxengine.request.ranges import check_range
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
        ValueError: a value is out of range or of another type; the message names field, value and limit.
    """

    width: int
    answers: int = 0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        check_range("beam search's width", self.width, 1, MAX_BEAMS, whole=True)
        check_range("beam search's answers", self.answers, 0, self.width, whole=True)
        check_range("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ValueError(f'early_stopping must be True, False or "never", got {self.early_stopping!r}')

    def score(self, total: float, length: int) -> float:
        """Of an answer of `length` tokens whose logprobs sum up to `total`."""
        return total / length**self.length_penalty if total > -math.inf else total
