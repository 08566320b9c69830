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

from jaxengine.sequence import Sequence

LAST_TOKEN = -1  # a token id that stands for "the one this slot sampled last", which only the device knows

SAMPLES = 1  # row flags: the row draws a token
PENALISED = 2  # its logits depend on the ids seen
OVER_LENGTH = 4  # frequency penalty is divided by the length (TGI)
PROCESSED = 8  # logprobs describe the processed distribution
BANNED = 16  # EOS and stop ids cannot be drawn yet
BIASED = 32  # it has a logit bias


class TokenFields(NamedTuple):
    """i32 [T] each."""

    id: Array  # LAST_TOKEN or a token id
    position: Array
    row: Array  # R for padding


class RowFields(NamedTuple):
    """[R] each; i32, or f32 where noted."""

    slot: Array  # the sink slot for padding
    last: Array  # index of the row's last token among the T
    prompt_length: Array
    length: Array  # tokens so far: the position of the token to draw
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


class TableUpdates(NamedTuple):
    """i32 [U] each: table[slot, place] = page. Padding has a place beyond the table."""

    slot: Array
    place: Array
    page: Array


FLOATS = len(RowFields._fields) - RowFields._fields.index("temperature")


@dataclass(frozen=True)
class Layout:
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


class Upload:
    """A step's buffer while the host fills it."""

    def __init__(self, layout: Layout, sink_slot: int, table_width: int) -> None:
        self.buffer = np.zeros(layout.size, np.int32)
        _, self.tokens, rows, self.updates = layout.sections(self.buffer)  # type: ignore[arg-type]
        self.rows = RowFields(*rows[:-FLOATS], *rows[-FLOATS:].view(np.float32))
        self.tokens.row[:] = layout.rows
        self.rows.slot[:] = sink_slot
        self.rows.temperature[:] = 1
        self.updates.place[:] = table_width
        self.used = 0

    def add_row(self, row: int, sequence: Sequence, start: int, count: int, samples: bool) -> None:
        """Positions `start … start+count-1` of `sequence` as row number `row`."""
        here = slice(self.used, self.used + count)
        known = sequence.tokens[start : start + count]
        self.tokens.id[here] = known + [LAST_TOKEN] * (count - len(known))
        self.tokens.position[here] = np.arange(start, start + count)
        self.tokens.row[here] = row
        self.used += count
        self.buffer[0] = self.used
        self.rows.slot[row] = sequence.slot
        self.rows.last[row] = self.used - 1
        self.rows.prompt_length[row] = sequence.prompt_length
        self.rows.length[row] = start + count
        if samples:
            self._add_sampling(row, sequence, start + count - sequence.prompt_length)

    def _add_sampling(self, row: int, sequence: Sequence, generated: int) -> None:
        params, rows = sequence.params, self.rows
        rows.flags[row] = SAMPLES | flags_of(sequence, generated)
        seed = np.array([params.seed or 0], np.uint64).view(np.int32)
        rows.seed_low[row], rows.seed_high[row] = seed
        rows.top_k[row] = params.top_k
        for name in RowFields._fields[-FLOATS:]:
            getattr(rows, name)[row] = getattr(params, name)

    def add_updates(self, updates: list[tuple[int, int, int]]) -> None:
        """(slot, index, page) triples, at most as many as the layout has."""
        if updates:
            for field, column in zip(self.updates, zip(*updates, strict=True), strict=True):
                field[: len(updates)] = column


def flags_of(sequence: Sequence, generated: int) -> int:
    """The processors that the token number `generated` of `sequence` needs."""
    params = sequence.params
    return (
        PENALISED * params.penalised
        | OVER_LENGTH * params.frequency_over_length
        | PROCESSED * params.processed_logprobs
        | BANNED * (generated < params.min_tokens)
        | BIASED * bool(params.logit_bias)
    )


def needs_seat(sequence: Sequence) -> bool:
    """Whether the sampler keeps state for `sequence` in its slot."""
    params = sequence.params
    return params.penalised or bool(params.logit_bias) or params.min_tokens > 0


def plain_greedy(sequence: Sequence) -> bool:
    """Whether argmax of the model's own logits, with its raw logprob, is all `sequence` asks for."""
    params = sequence.params
    return params.greedy and not needs_seat(sequence) and params.logprobs == 0
