"""Fills the one buffer that a step uploads with what the host knows of the step's tokens, rows and samples."""

from functools import lru_cache
from typing import Any

import numpy as np

from jaxengine.request.image import seen_rows
from jaxengine.request.plan import Row
from jaxengine.request.samplers import ORDER
from jaxengine.request.sequence import Sequence
from jaxengine.step.buffer import (
    BAD_WORDS,
    BANNED,
    BIASED,
    BLIND,
    FLOATS,
    FULL_SAMPLER,
    HEADER,
    LAST_TOKEN,
    LOOKS_BACK,
    MASKED,
    NO_GUESS,
    NO_IMAGE,
    OVER_LENGTH,
    PENALISED,
    PROCESSED,
    QUEUE_BITS,
    SUMMED,
    TOKEN,
    RowFields,
    SampleFields,
    StepShape,
    TokenFields,
)
from jaxengine.step.sampler_slot import needs_sampler_state
from jaxengine.step.samples import Samples
from jaxengine.step.sight import BLINDFOLD, SequenceSight

ID, POSITION, ROW = (TokenFields._fields.index(name) for name in ("id", "position", "row"))
SLOT = RowFields._fields.index("slot")
SAMPLE_POSITION, MASK, GUESS, GUESSES_BEFORE, FLAGS = (
    SampleFields._fields.index(name) for name in ("position", "mask", "guess", "guesses_before", "flags")
)
NEW = -1  # in place of how many rows of the pool a slot's sequence sees, until that is known


class SlotFields:
    """The host's copy of each slot's row and sample fields, written when a sequence takes the slot. A step gathers
    columns of it.
    """

    def __init__(self, slots: int, run: int = 0) -> None:
        """`run`: as of `Sight`."""
        self.sink = slots
        self.packed_rows = np.zeros((len(RowFields._fields), slots + 1), np.int32)
        self.packed_samples = np.zeros((len(SampleFields._fields), slots + 1), np.int32)
        self.rows = RowFields(*self.packed_rows)  # type: ignore[arg-type]
        self.samples = _host_samples(self.packed_samples)
        self.rows.slot[:] = self.samples.slot[:] = self.samples.mask[:] = np.arange(slots + 1)
        self.samples.guess[:] = NO_GUESS
        self.min_length = np.zeros(slots + 1, np.int32)  # tokens, prompt included, before a sequence may end
        self.sights = [BLINDFOLD] * (slots + 1)
        self.rope_shift = np.zeros(slots + 1, np.int32)
        self.seen = np.full(slots + 1, NEW, np.int32)  # rows of the pool that layers attend to behind what is computed
        self.runs = np.zeros((slots + 1, run), np.int32)  # these

    def fill(self, sequence: Sequence, sight: SequenceSight = BLINDFOLD) -> None:
        """`sequence` took its slot."""
        slot, params = sequence.slot, sequence.params
        assert slot is not None
        self.sights[slot], self.rope_shift[slot] = sight, sight.shift
        self.seen[slot] = NEW
        self.rows.rope_length[slot] = sequence.rope_length
        self.rows.encoder_length[slot] = len(sequence.encoder_input)
        self.rows.adapter[slot] = 0 if sequence.adapter_slot is None else sequence.adapter_slot + 1
        self.samples.flags[slot] = flags_of(sequence)
        seed = np.array([params.seed or 0], np.uint64).view(np.int32)
        self.samples.seed_low[slot], self.samples.seed_high[slot] = seed
        for name in SampleFields._fields[SampleFields._fields.index("top_k") :]:
            getattr(self.samples, name)[slot] = getattr(params, name)
        self.samples.temperature[slot] = params.first_temperature
        queue = sum(ORDER.index(name) + 1 << QUEUE_BITS * place for place, name in enumerate(params.filters))
        self.samples.queue_low[slot], self.samples.queue_high[slot] = np.array([queue], np.uint64).view(np.int32)
        self.min_length[slot] = sequence.prompt_length + params.min_tokens

    def forget_seen(self, sequence: Sequence) -> None:
        """`sequence`, which has a slot, sees other rows of the pool than in the step before."""
        self.seen[sequence.slot] = NEW

    def see(self, sequence: Sequence, start: int, count: int) -> np.ndarray:
        """i32 [count]: how many rows of the pool each token of `sequence` from `start` on sees in layers that attend to
        pictures. From now on the slot has what the last of them sees, unless the next one sees them no more.
        """
        rows, seen = seen_rows(sequence.images, start, count)
        slot, ends = sequence.slot, any(each.until == start + count for each in sequence.images)
        self.runs[slot, : len(rows)], self.seen[slot] = rows, NEW if ends else len(rows)
        return seen


@lru_cache(maxsize=64)
def _padding(shape: StepShape, sink_slot: int, table_width: int) -> np.ndarray:
    """The buffer of a step of nothing but padding. Copying it takes 0.2 us, and making it 20."""
    buffer = np.zeros(shape.size, np.int32)
    _, _, tokens, rows, packed_samples, updates, sight = shape.sections(buffer)  # type: ignore[arg-type]
    samples = _host_samples(packed_samples)  # type: ignore[arg-type]
    tokens.row[:] = shape.rows  # type: ignore[index]
    rows.slot[:] = samples.slot[:] = samples.mask[:] = sink_slot  # type: ignore[index]
    updates.column[:] = table_width  # type: ignore[index]
    if sight.image_row is not None:
        sight.image_row[:] = NO_IMAGE  # type: ignore[index]
    return buffer


class Upload:
    """A step's buffer while the host fills it; as made, a step of nothing but padding."""

    def __init__(self, shape: StepShape, sink_slot: int, table_width: int) -> None:
        self.ragged = shape.ragged
        self.buffer = _padding(shape, sink_slot, table_width).copy()
        parts: Any = shape.parts(self.buffer)  # type: ignore[arg-type]
        self.tokens, self.rows, self.packed_samples, self.updates, self.sight = parts

    def add_rows(self, rows: list[Row], slots: SlotFields) -> None:
        """The rows of a plan, in order. What depends on a row is gathered by NumPy, unless the row feeds known ids."""
        slot = np.array([row.sequence.slot for row in rows], np.int32)
        self.rows[:, : len(rows)] = slots.packed_rows[:, slot]
        ends = self._place(rows)
        used = ends[-1]
        self.buffer[:HEADER] = used, self.ragged and not any(row.sequence.reads_whole_prompt for row in rows)
        ids = self.tokens[ID]
        ids[:used] = LAST_TOKEN
        for row, last in zip(rows, ends, strict=True):
            if row.of_encoder or row.start < len(row.sequence.tokens):
                known = row.ids
                ids[last - row.count : last - row.count + len(known)] = known
        if self.sight is not BLIND:
            self._add_sight(rows, ends, slots)

    def _place(self, rows: list[Row]) -> list[int]:
        """Write the row and the position of each token. Returns where each row's tokens end."""
        number, start = np.arange(len(rows), dtype=np.int32), np.array([row.start for row in rows], np.int32)
        if not self.ragged:  # each is one token
            self.tokens[ROW, : len(rows)], self.tokens[POSITION, : len(rows)] = number, start
            return [*range(1, len(rows) + 1)]
        count = np.array([row.count for row in rows], np.int32)
        end = np.cumsum(count)
        used = int(end[-1])
        self.tokens[ROW, :used] = np.repeat(number, count)
        self.tokens[POSITION, :used] = np.arange(used) + np.repeat(start + count - end, count)
        return end.tolist()

    def _add_sight(self, rows: list[Row], ends: list[int], slots: SlotFields) -> None:
        """What a model that sees must know besides. Behind a prompt that is its shift alone: no row is looked at."""
        if self.sight.seen is not None:
            self._add_run(self.sight.seen, self.sight.run, rows, ends, slots)
        if self.sight.rope is not None:
            used = ends[-1]
            shift = slots.rope_shift[self.rows[SLOT, self.tokens[ROW, :used]]]
            self.sight.rope[:, :used] = self.tokens[POSITION, :used] + shift
        if self.sight.image_row is None:
            return
        for row, last in zip(rows, ends, strict=True):
            slot = row.sequence.slot
            if slot is not None and row.start < row.sequence.prompt_length:
                self._add_prompt_sight(row, last - row.count, slots.sights[slot])

    def _add_prompt_sight(self, row: Row, first: int, sight: SequenceSight) -> None:
        """Of a row that begins in a prompt, whose tokens lie from `first` on."""
        image_row, horizon, rope, *_ = self.sight
        here = slice(row.start, row.start + row.count)
        if image_row is not None and row.sequence.images:
            image_row[first : first + row.count] = row.image_rows
        if horizon is not None:
            known = sight.horizon[here]
            horizon[first : first + len(known)] = known
        if rope is not None:
            turned = sight.rope[:, here]
            rope[:, first : first + turned.shape[1]] = turned

    def _add_run(self, seen: Any, run: Any, rows: list[Row], ends: list[int], slots: SlotFields) -> None:
        """What layers attend to of pictures. It stays as the slots have it while every row is one token of no image."""
        slot = self.rows[SLOT, : len(rows)]
        for i in range(len(rows)) if self.ragged else np.flatnonzero(slots.seen[slot] == NEW).tolist():
            row, end = rows[i], ends[i]
            seen[end - row.count : end] = slots.see(row.sequence, row.start, row.count)
        if not self.ragged:
            seen[: len(rows)] = slots.seen[slot]
        run[: len(rows)] = slots.runs[slot]

    def add_samples(self, samples: Samples, slots: SlotFields) -> None:
        """The samples of the rows that were added, in order; at most as many as the shape has."""
        assert len(samples) <= self.packed_samples.shape[1]
        slot = np.array([row.sequence.slot for row in samples.rows], np.int32)
        packed = self.packed_samples[:, : len(samples)]
        packed[:] = slots.packed_samples[:, slot]
        packed[TOKEN], packed[SAMPLE_POSITION] = samples.token, samples.position
        if any(row.draft for row in samples.rows):
            packed[GUESS], packed[GUESSES_BEFORE] = samples.guesses()
            packed[MASK] = samples.mask_numbers(slots.sink)
        packed[FLAGS] |= BANNED * (samples.position < slots.min_length[slot])

    @property
    def greedy(self) -> bool:
        """Whether all samples want the model's own argmax and nothing else."""
        return not np.bitwise_or.reduce(self.packed_samples[FLAGS]) & FULL_SAMPLER

    def add_updates(self, updates: list[tuple[int, int, int]]) -> None:
        """(row, column, page) triples, at most as many as the shape has."""
        if updates:
            self.updates[:, : len(updates)] = np.array(updates, np.int32).T


def _host_samples(packed: np.ndarray) -> SampleFields:
    """Views of a NumPy i32 [fields, …]."""
    return SampleFields(*packed[:-FLOATS], *packed[-FLOATS:].view(np.float32))  # type: ignore[arg-type]


def flags_of(sequence: Sequence) -> int:
    """The processors that `sequence` always needs."""
    params = sequence.params
    return (
        PENALISED * params.penalised
        | OVER_LENGTH * params.frequency_over_length
        | PROCESSED * (params.processed_logprobs or sequence.beams is not None)
        | BIASED * bool(params.logit_bias)
        | BAD_WORDS * bool(params.bad_words)
        | MASKED * (sequence.matcher is not None)
        | SUMMED * (sequence.beams is not None)
        | LOOKS_BACK * params.looks_back
        | FULL_SAMPLER * (not _plain_greedy(sequence))
    )


def _plain_greedy(sequence: Sequence) -> bool:
    params = sequence.params
    plain = params.greedy and sequence.listed == 0 and params.watermark_gamma == 0
    return plain and sequence.matcher is None and not needs_sampler_state(sequence)
