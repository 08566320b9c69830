"""Which positions of a step are sampled or scored. A sample names its row and its token, so a row may have several.

A shape has as many samples as rows (`executor/shapes.py`), and the sampler's memory takes at most one sampled id of a
slot and step (`step/sampling.py`). Speculation has to widen the first and to choose the id for the second.

By default each row that `samples` has one sample, at its last token. Where the logprobs of a prompt are wanted, each of
its tokens that is followed by another has one, which is scored: what comes next is known there.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from jaxengine.request.plan import Row


@dataclass(frozen=True)
class Samples:
    """N samples of a step, on the host."""

    rows: list[Row]  # the row of each
    token: np.ndarray  # i32 [N], index among the step's tokens of the one whose hidden state tells what comes next
    position: np.ndarray  # i32 [N], of what comes next, in the row's sequence

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def last_of(cls, rows: list[Row]) -> Self:
        """One of each row that samples, at its last token."""
        if all(row.count == 1 and row.samples for row in rows):  # a decode step
            return cls(rows, np.arange(len(rows), dtype=np.int32), np.array([row.start + 1 for row in rows], np.int32))
        sampling = [row for row in rows if row.samples]
        token = np.cumsum([row.count for row in rows], dtype=np.int32) - 1
        if len(sampling) < len(rows):
            token = token[[row.samples for row in rows]]
        return cls(sampling, token, np.array([row.start + row.count for row in sampling], np.int32))

    @classmethod
    def of_prompts(cls, rows: list[Row]) -> Self:
        """One of each token of a prompt whose successor, a token of the prompt too, is wanted with its logprob."""
        chosen: list[Row] = []
        token: list[int] = []
        position: list[int] = []
        first = 0
        for row in rows:
            count = min(row.count, row.sequence.prompt_length - 1 - row.start)
            if row.sequence.params.prompt_logprobs and count > 0:
                chosen += [row] * count
                token += range(first, first + count)
                position += range(row.start + 1, row.start + 1 + count)
            first += row.count
        return cls(chosen, np.array(token, np.int32), np.array(position, np.int32))

    def known_ids(self) -> list[int]:
        """The tokens that come next, which the host knows."""
        return [row.sequence.tokens[position] for row, position in zip(self.rows, self.position.tolist(), strict=True)]


NO_SAMPLES = Samples.of_prompts([])
