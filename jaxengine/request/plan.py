"""What one step computes. The scheduler writes it, the runner and the engine read it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxengine.architecture.adaptation import LoadedAdapter
from jaxengine.request.image import Image, pool_rows
from jaxengine.request.sequence import Sequence


@dataclass(slots=True)
class Row:
    """Positions `start … start+count-1` of a sequence in a step.

    samples: from the logits of so many of the last of these positions tokens are sampled.
    draft: guesses of the tokens behind those that are known, the row's last ids. A token is sampled behind each of
        them; the first of these that differs from its guess is the last that counts.
    of_encoder: the positions are those of the encoder's input.
    again: so many of its first tokens are guesses that a step before has found right, see `Sequence.again`.
    """

    sequence: Sequence
    start: int
    count: int
    samples: int
    of_encoder: bool = False
    draft: list[int] = field(default_factory=list)
    again: int = 0

    @property
    def of_prompt(self) -> bool:
        """Whether the row computes tokens of the request's prompt, not generated ones."""
        sequence = self.sequence
        return self.of_encoder or (self.start < sequence.prompt_length and not sequence.encoder_input)

    @property
    def ids(self) -> list[int]:
        """The row's token ids, as far as the host knows or guesses them."""
        tokens = self.sequence.encoder_input if self.of_encoder else self.sequence.tokens
        return tokens[self.start : self.start + self.count] + self.draft

    @property
    def sees(self) -> bool:
        """Whether one of its tokens belongs to an image."""
        sequence, end = self.sequence, self.start + self.count
        return self.start < sequence.images_end and any(
            each.image.offset < end and self.start < each.image.end for each in sequence.images
        )

    @property
    def image_rows(self) -> np.ndarray:
        """i32 [count]: which of the pool's rows stands in for each token, until the step is complete; -1 = none."""
        return pool_rows([] if self.of_encoder else self.sequence.images, self.start, self.count)

    def add_draft(self, draft: list[int]) -> None:
        self.draft = draft
        self.count += len(draft)
        self.samples += len(draft)


class Save(NamedTuple):
    """Behind `at` tokens of `sequence` its slot is copied to the slot `snapshot`."""

    sequence: Sequence
    at: int
    snapshot: int


@dataclass
class Plan:
    """One step.

    rows: what the decoder computes; `tokens` is the sum of their counts.
    encoder_rows: what the encoder reads before that; each is a whole encoder input, as its tokens all see each other.
    admitted: the sequences that took a slot in this step.
    restores: of what slots to what slots the device must copy states before the rows are computed.
    saves: copies of states that it makes behind them.
    placements: adapters that the device must have before this step, and the slots of its stacks that they go to.
    encodes: images that the device must encode before the rows are computed, and i32 [rows] of the pool for each.
    sees_others: the sequences that read images which they did not hold before.
    images_wait: an image of a request was left out because the pool or the encoder has no room for it in this step, so
        none of a later request begins.
    waiting_for_prefix: the sequences left in the queue because a running one is computing a prefix they can share.
    ahead: it was made while the step before was in flight.
    drain: a sequence must be preempted, so the plan is empty: complete what is in flight, then plan again.
    """

    rows: list[Row] = field(default_factory=list)
    tokens: int = 0
    encoder_rows: list[Row] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    restores: list[tuple[int, int]] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    placements: list[tuple[int, LoadedAdapter]] = field(default_factory=list)
    encodes: list[tuple[Image, np.ndarray]] = field(default_factory=list)
    sees_others: list[Sequence] = field(default_factory=list)
    images_wait: bool = False
    waiting_for_prefix: list[Sequence] = field(default_factory=list)
    ahead: bool = False
    drain: bool = False

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.tokens += row.count

    @property
    def encoder_tokens(self) -> int:
        return sum(row.count for row in self.encoder_rows)

    @property
    def has_adapters(self) -> bool:
        """Whether a row's sequence has an adapter."""
        return any(row.sequence.adapter is not None for row in self.rows)

    @property
    def verifies(self) -> bool:
        """Whether a row has a draft."""
        return any(row.draft for row in self.rows)

    @property
    def grows_beams(self) -> bool:
        """Whether a row samples for a beam search."""
        return any(row.samples and row.sequence.beams for row in self.rows)

    @property
    def decode_only(self) -> bool:
        """Whether every row is one token, of no image, and samples the next."""
        return self.tokens == len(self.rows) and self.decodes

    @property
    def decodes(self) -> bool:
        """Whether every row is one token, of no image, that was never computed before, and samples the next."""
        if self.tokens > len(self.rows) and self.tokens != sum(1 + row.again for row in self.rows):
            return False
        return all(row.samples and not (row.sequence.images and row.sees) for row in self.rows)
