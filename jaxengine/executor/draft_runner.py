"""The device's side of a draft model or of EAGLE's layers: what was read of which request, and what is guessed.

Its caches lie in the same pages as the target's, so they need no accounting. No answer depends on what is in them. So
nothing is kept of them between requests or over a preemption: the draft model reads a prompt itself, even one whose
pages the target found in its prefix cache.

It reads nothing until it is asked to draft. What it lacks then, `catch_up` reads in parts, each as large as a step may
be at most; until it has read all, it proposes nothing for that request. What is new since it was last asked, a token or
two, it reads in the call that guesses. Guesses are the likeliest tokens, whatever the temperature.

EAGLE's layers read at each position the feature that the target left there and the token behind it, so one token less
than a draft model. What they have read of their own guesses was made of states in place of features, and is read again.
What is read at the end of a page is of the first token of the next one. So requests that share a page and not that
token overwrite each other's: of 4 requests behind 64 shared tokens that moved chances, and hardly ever a guess.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax import Array

from jaxengine.executor.bucket_chooser import BucketChooser
from jaxengine.executor.device_state import DeviceState
from jaxengine.executor.shapes import Shapes
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.drafter import Proposal
from jaxengine.step.buffer import StepShape
from jaxengine.step.draft_functions import DraftUpload


class Reading:
    """What was read of one request since that has its pages.

    Args:
        behind: how far behind its position the token stands that is read there, 0 or 1.
    """

    def __init__(self, sequence: Sequence, width: int, behind: int) -> None:
        self.tables = sequence.tables  # others after a preemption
        self.behind = behind
        self.read = 0  # positions of which there are keys and values
        self.guessed: list[int] = []  # behind these there are those of these guesses
        self.page_table = np.zeros(width, np.int32)
        self.pages = 0  # in it

    def follow(self, sequence: Sequence) -> None:
        """Of a sequence that has grown. At least its last position is unread, as the next token is guessed there."""
        for guess, token in zip(self.guessed, sequence.tokens[self.read :], strict=False):
            if guess != token:
                break
            self.read += 1
        self.guessed = []
        self.read = min(self.read, self.end(sequence) - 1)
        pages = sequence.tables[0].pages
        self.page_table[self.pages : len(pages)] = pages[self.pages :]
        self.pages = len(pages)

    def end(self, sequence: Sequence) -> int:
        """How many positions can be read."""
        return len(sequence.tokens) - self.behind

    def missing(self, sequence: Sequence) -> int:
        """How many of them are unread."""
        return self.end(sequence) - self.read

    def ids(self, sequence: Sequence, end: int) -> list[int]:
        """The tokens that are read at the unread positions up to `end`."""
        return sequence.tokens[self.read + self.behind : end + self.behind]


class DraftRunner:
    """A `Proposer`."""

    def __init__(self, shapes: Shapes, state: DeviceState, buckets: BucketChooser) -> None:
        assert shapes.draft_model is not None
        self.shapes = shapes
        self.spec = shapes.draft_model
        self.state = state
        self.buckets = buckets

    def reset(self) -> None:
        """Fresh, empty caches."""
        self.state.launch("allocate_draft")
        self.readings: WeakKeyDictionary[Sequence, Reading] = WeakKeyDictionary()

    def first_run(self, shape: StepShape) -> None:
        """Run on padding what belongs to a step of `shape`."""
        names = self.shapes.names(shape)
        if ("read", shape.tokens) in names:
            self._read(shape.tokens, DraftUpload(self.shapes.draft_reading(shape.tokens)))
        if ("propose", shape.rows) in names:
            self._guess(shape.rows, DraftUpload(self.shapes.draft_guessing(shape.rows)))
        jax.block_until_ready(self.state.draft_layers)

    def can_propose(self, rows: int) -> bool:
        return self.buckets.propose_size(rows) is not None

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        readings = {each: self._reading(each) for each in sequences if self._fits(each)}
        if behind := self._behind(readings):
            self._read_part(sorted(behind, key=lambda each: readings[each].missing(each)))
        left = self._behind(readings)
        return [each for each in readings if each not in left]

    def _behind(self, readings: Mapping[Sequence, Reading]) -> set[Sequence]:
        """Those of which more is unread than the call that guesses reads, of each or of all together."""
        missing = {each: reading.missing(each) for each, reading in readings.items()}
        few = {each: count for each, count in missing.items() if count <= self.spec.fresh}
        rows = self.buckets.propose_size(len(few))
        if few and rows is not None and sum(few.values()) <= self.shapes.draft_guessing(rows).tokens:
            return missing.keys() - few.keys()
        return {each for each, count in missing.items() if count > 1}

    def _fits(self, sequence: Sequence) -> bool:
        """Whether it can be read up to the last guess."""
        return len(sequence.tokens) + self.spec.guesses <= self.spec.spec.max_positions

    def propose(self, sequences: Items[Sequence]) -> list[Proposal]:
        rows = self.buckets.propose_size(len(sequences))
        assert rows is not None
        upload = DraftUpload(self.shapes.draft_guessing(rows))
        for each in sequences:
            self._add(upload, each, self.readings[each].end(each))
        ids, chances = np.split(np.asarray(self._guess(rows, upload))[: len(sequences)], 2, axis=1)
        proposals = map(Proposal, ids.tolist(), chances.view(np.float32).tolist())
        return [self._within_pages(*each) for each in zip(sequences, proposals, strict=True)]

    def _within_pages(self, sequence: Sequence, proposal: Proposal) -> Proposal:
        """`proposal` as far as it was made of keys that have a page."""
        room = sequence.page_capacity - len(sequence.tokens)
        if not self.spec.behind:
            self.readings[sequence].guessed = proposal.ids[: min(room, self.spec.guesses - 1)]
        return Proposal(proposal.ids[: room + 1], proposal.chances[: room + 1])

    def _reading(self, sequence: Sequence) -> Reading:
        reading = self.readings.get(sequence)
        if reading is None or reading.tables is not sequence.tables:
            reading = self.readings[sequence] = Reading(sequence, self.shapes.table_width, self.spec.behind)
        reading.follow(sequence)
        return reading

    def _read_part(self, sequences: list[Sequence]) -> None:
        """As much of what is unread of `sequences`, but the last of each, as one call reads. Waits for the device."""
        left = self.shapes.limits.token_budget
        parts = []
        for each in sequences:
            reading = self.readings[each]
            count = min(left, reading.missing(each) - 1)
            left -= count
            parts += [(each, reading.read + count)] if count else []
        tokens = self.buckets.read_size(self.shapes.limits.token_budget - left)
        upload = DraftUpload(self.shapes.draft_reading(tokens))
        for each, end in parts:
            self._add(upload, each, end)
        self._read(tokens, upload)
        jax.block_until_ready(self.state.draft_layers)

    def _add(self, upload: DraftUpload, sequence: Sequence, end: int) -> None:
        """Have the unread positions of `sequence` up to `end` read."""
        reading = self.readings[sequence]
        ids = reading.ids(sequence, end)
        upload.add(ids, reading.read, reading.page_table, sequence.page_capacity, sequence.rope_length)
        reading.read = end

    def _read(self, tokens: int, upload: DraftUpload) -> None:
        self.state.launch(("read", tokens), upload.buffer)

    def _guess(self, rows: int, upload: DraftUpload) -> Array:
        return self.state.launch(("propose", rows), upload.buffer)  # type: ignore[no-any-return]
