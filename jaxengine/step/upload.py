"""The one buffer a step uploads: what the host knows of the step's tokens and rows, packed into int32 and unpacked on
the device.

One packed transfer costs a tenth of nine separate ones (85 against 858 µs, JAX 0.10.2). Floats travel as their bits.
Legend: T tokens, R rows, U page-table updates.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.request.plan import Row
from jaxengine.request.sequence import Sequence
from jaxengine.step.sampler_slot import needs_sampler_state

LAST_TOKEN = -1  # a token id that stands for "the one this slot sampled last", which only the device knows

SAMPLES = 1  # row flags: the row draws a token
PENALISED = 2  # its logits depend on the ids seen
OVER_LENGTH = 4  # frequency penalty is divided by the length (TGI)
PROCESSED = 8  # logprobs describe the processed distribution
BANNED = 16  # EOS and stop ids cannot be sampled yet
BIASED = 32  # it has a logit bias
BAD_WORDS = 64  # it has bad words
FULL_SAMPLER = 128  # it wants more than the model's own argmax with its logprob


class TokenFields(NamedTuple):
    """i32 [T] each."""

    id: Array  # LAST_TOKEN or a token id
    position: Array
    row: Array  # R for padding


class RowFields(NamedTuple):
    """[R] each; i32, or f32 where noted."""

    slot: Array  # the sink slot for padding
    last: Array  # index of the row's last token among the T
    rope_length: Array  # tokens of the text when its keys were computed, see `Sequence.rope_length`
    encoder_length: Array  # tokens that the encoder read
    length: Array  # tokens so far: the position of the token to sample
    previous: Array  # the token before the one to sample; filled in on the device, where it may have been sampled
    flags: Array
    seed_low: Array
    seed_high: Array
    top_k: Array
    temperature: Array  # f32, 0 = greedy
    top_p: Array  # f32
    typical_p: Array  # f32
    min_p: Array  # f32
    repetition_penalty: Array  # f32
    frequency_penalty: Array  # f32
    presence_penalty: Array  # f32
    watermark_gamma: Array  # f32, 0 = none
    watermark_delta: Array  # f32


class TableUpdates(NamedTuple):
    """i32 [U] each: table[row, column] = page. Padding has a column beyond the table."""

    row: Array
    column: Array
    page: Array


PREVIOUS = RowFields._fields.index("previous")
FLOATS = len(RowFields._fields) - RowFields._fields.index("temperature")


@dataclass(frozen=True)
class StepShape:
    """Sizes of a step's sections; the buffer is [tokens, 3·T, rows, 3·U] in this order."""

    tokens: int
    rows: int
    updates: int
    ragged: bool

    @property
    def size(self) -> int:
        return 1 + 3 * self.tokens + len(RowFields._fields) * self.rows + 3 * self.updates

    def sections(self, packed: Array) -> tuple[Array, TokenFields, Array, TableUpdates]:
        """The number of real tokens, and the sections; rows still packed, [fields, R]. Views of a NumPy buffer."""
        a = 1 + 3 * self.tokens
        b = a + len(RowFields._fields) * self.rows
        return (
            packed[0],
            TokenFields(*packed[1:a].reshape(3, -1)),
            packed[a:b].reshape(-1, self.rows),
            TableUpdates(*packed[b:].reshape(3, -1)),
        )


def unpack_rows(packed: Array) -> RowFields:
    """i32 [fields, R] → the fields, on the device."""
    floats = jax.lax.bitcast_convert_type(packed[-FLOATS:], jnp.float32)
    return RowFields(*packed[:-FLOATS], *floats)


class SlotFields:
    """The host's copy of every slot's row fields, written when a sequence takes it: a step gathers its columns."""

    def __init__(self, slots: int) -> None:
        self.packed = np.zeros((len(RowFields._fields), slots + 1), np.int32)
        self.fields = _host_rows(self.packed)
        self.fields.slot[:] = np.arange(slots + 1)
        self.fields.temperature[:] = 1
        self.min_length = np.zeros(slots + 1, np.int32)  # tokens, prompt included, before a sequence may end

    def fill(self, sequence: Sequence) -> None:
        """`sequence` took its slot."""
        slot, params = sequence.slot, sequence.params
        self.fields.rope_length[slot] = sequence.rope_length
        self.fields.encoder_length[slot] = len(sequence.encoder_input)
        self.fields.flags[slot] = flags_of(sequence)
        seed = np.array([params.seed or 0], np.uint64).view(np.int32)
        self.fields.seed_low[slot], self.fields.seed_high[slot] = seed
        for name in RowFields._fields[RowFields._fields.index("top_k") :]:
            getattr(self.fields, name)[slot] = getattr(params, name)
        if params.greedy:  # the likeliest id is sampled, alone and among others: no filter may take it away
            self.fields.top_k[slot] = self.fields.min_p[slot] = 0
            self.fields.top_p[slot] = self.fields.typical_p[slot] = 1
        self.min_length[slot] = sequence.prompt_length + params.min_tokens


class Upload:
    """A step's buffer while the host fills it; as made, a step of nothing but padding."""

    def __init__(self, shape: StepShape, sink_slot: int, table_width: int) -> None:
        self.buffer = np.zeros(shape.size, np.int32)
        _, self.tokens, self.packed_rows, self.updates = shape.sections(self.buffer)  # type: ignore[arg-type]
        self.rows = _host_rows(self.packed_rows)  # type: ignore[arg-type]
        self.tokens.row[:] = shape.rows
        self.rows.slot[:] = sink_slot
        self.rows.temperature[:] = 1
        self.updates.column[:] = table_width

    def add_rows(self, rows: list[Row], slots: SlotFields) -> None:
        """The rows of a plan, in order. What depends on a row is gathered by NumPy, unless the row feeds known ids."""
        slot = np.array([row.sequence.slot for row in rows], np.int32)
        start = np.array([row.start for row in rows], np.int32)
        count = np.array([row.count for row in rows], np.int32)
        samples = np.array([row.samples for row in rows], np.int32)
        end = np.cumsum(count)
        here, used = slice(len(rows)), int(end[-1])
        self.buffer[0] = used
        self.packed_rows[:, here] = slots.packed[:, slot]
        self.rows.last[here] = end - 1
        self.rows.length[here] = length = start + count
        banned = length < slots.min_length[slot]
        self.rows.flags[here] = (self.rows.flags[here] | SAMPLES | BANNED * banned) * samples
        self.tokens.row[:used] = np.repeat(np.arange(len(rows)), count)
        self.tokens.position[:used] = np.arange(used) + np.repeat(length - end, count)
        self.tokens.id[:used] = LAST_TOKEN
        for row, last in zip(rows, end.tolist(), strict=True):
            if row.of_encoder or row.start < len(row.sequence.tokens):
                known = row.ids
                self.tokens.id[last - row.count : last - row.count + len(known)] = known

    def flagged(self, bit: int) -> bool:
        """Whether a row that samples has this flag."""
        return bool((self.rows.flags & bit).any())

    def add_updates(self, updates: list[tuple[int, int, int]]) -> None:
        """(row, column, page) triples, at most as many as the shape has."""
        if updates:
            for field, column in zip(self.updates, zip(*updates, strict=True), strict=True):
                field[: len(updates)] = column


def _host_rows(packed: np.ndarray) -> RowFields:
    """Views of a NumPy i32 [fields, …]."""
    return RowFields(*packed[:-FLOATS], *packed[-FLOATS:].view(np.float32))  # type: ignore[arg-type]


def flags_of(sequence: Sequence) -> int:
    """The processors that `sequence` always needs."""
    params = sequence.params
    return (
        PENALISED * params.penalised
        | OVER_LENGTH * params.frequency_over_length
        | PROCESSED * params.processed_logprobs
        | BIASED * bool(params.logit_bias)
        | BAD_WORDS * bool(params.bad_words)
        | FULL_SAMPLER * (not _plain_greedy(sequence))
    )


def _plain_greedy(sequence: Sequence) -> bool:
    params = sequence.params
    return params.greedy and not needs_sampler_state(sequence) and params.logprobs == 0 and params.watermark_gamma == 0
