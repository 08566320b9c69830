"""Which positions of a step are sampled or scored. A sample names its row and its token, so a row may have several.

By default each row that `samples` has one sample, at its last token, and one more in front of each guess of its draft,
see `step/verification.py`. Where the logprobs of a prompt are wanted, each of its tokens that is followed by another
has one, which is scored: what comes next is known there.
"""

import itertools
from dataclasses import dataclass
from typing import Self

import numpy as np

from jaxengine.request.plan import Row
from jaxengine.step.buffer import NO_GUESS


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
        """So many of each row as it `samples`, at the last of its tokens."""
        if all(row.count == 1 and row.samples for row in rows):  # a decode step
            return cls(rows, np.arange(len(rows), dtype=np.int32), np.array([row.start + 1 for row in rows], np.int32))
        samples = np.array([row.samples for row in rows], np.int32)
        behind = np.repeat(np.cumsum(samples), samples) - np.arange(samples.sum())  # to its row's last, itself counted
        token = np.repeat(np.cumsum([row.count for row in rows]), samples) - behind
        position = np.repeat([row.start + row.count + 1 for row in rows], samples) - behind
        of = [row for row in rows for _ in range(row.samples)]
        return cls(of, token.astype(np.int32), position.astype(np.int32))

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

    def guesses(self) -> tuple[list[int], list[int]]:
        """For each sample of rows with drafts, the guess of it, or NO_GUESS, and how many stand in front of it."""
        rows = [row for i, row in enumerate(self.rows) if i == 0 or row is not self.rows[i - 1]]
        guesses = [guess for row in rows for guess in (*row.draft, NO_GUESS)]
        return guesses, [i for row in rows for i in range(row.samples)]

    def mask_numbers(self, sink: int) -> list[int]:
        """Which of the sampler's masks each has: its slot's, or behind a guess one of those behind the `sink`'s."""
        behind = itertools.count(sink + 1)
        firsts = [i == 0 or row is not self.rows[i - 1] for i, row in enumerate(self.rows)]
        slots = (row.sequence.slot or 0 for row in self.rows)  # each has one
        return [slot if first else next(behind) for slot, first in zip(slots, firsts, strict=True)]

    def known_ids(self) -> list[int]:
        """The tokens that come next, which the host knows."""
        return [row.sequence.tokens[position] for row, position in zip(self.rows, self.position.tolist(), strict=True)]


NO_SAMPLES = Samples.of_prompts([])
