"""The layout of the one buffer that a step uploads: its sections and fields, packed into int32, and how the device
unpacks them.

One packed transfer costs a tenth of nine separate ones (85 against 858 µs, JAX 0.10.2). Floats travel as their bits.
Rows and samples stand apart: a row is what attention needs to know of a sequence, a sample is what the sampler needs to
know of one position of a row. A row may have no sample, one or several. A model that sees has one section more.
Legend: T tokens, R rows, N samples, U page-table updates.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

NO_IMAGE = -1  # the image row of a token that has an embedding
NO_GUESS = -1  # the guess of a sample for which there is none: no sampled id equals it
LAST_TOKEN = -1  # a token id that stands for "the one this slot sampled last", which only the device knows

PENALISED = 1  # sample flags: its logits depend on the ids seen
OVER_LENGTH = 2  # frequency penalty is divided by the length (TGI)
PROCESSED = 4  # logprobs describe the processed distribution
BANNED = 8  # EOS and stop ids cannot be sampled yet
BIASED = 16  # it has a logit bias
BAD_WORDS = 32  # it has bad words
FULL_SAMPLER = 64  # it wants more than the model's own argmax with its logprob
MASKED = 128  # only ids in its slot's mask may be sampled
SUMMED = 256  # its logprobs are added up by a beam search
LOOKS_BACK = 512  # its samplers look back at the ids

QUEUE_BITS = 4  # of a filter in a sample's queue, see `step/filters.py`


class TokenFields(NamedTuple):
    """i32 [T] each."""

    id: Array  # LAST_TOKEN or a token id
    position: Array
    row: Array  # R for padding


class RowFields(NamedTuple):
    """i32 [R] each."""

    slot: Array  # the sink slot for padding
    rope_length: Array  # tokens of the text when its keys were computed, see `Sequence.rope_length`
    encoder_length: Array  # tokens that the encoder read
    adapter: Array  # slot of its adapter, and one more: 0 for none


class SampleFields(NamedTuple):
    """[N] each; i32, or f32 where noted."""

    slot: Array  # of its row; the sink slot for padding
    token: Array  # index among the T of the token whose hidden state is sampled from
    position: Array  # of the token to sample
    previous: Array  # id of the token before that one; filled in on the device, where it may have been sampled
    mask: Array  # which mask counts where it is MASKED: its slot's, or one of those for guesses
    guess: Array  # of what will be sampled, NO_GUESS or a token id, see `step/verification.py`
    guesses_before: Array  # how many guesses of its row stand in front of it
    flags: Array
    seed_low: Array
    seed_high: Array
    queue_low: Array  # the filters that act, in their order, the first in the lowest bits
    queue_high: Array
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


class SightFields(NamedTuple):
    """i32; what a model that sees must know of tokens besides. None where it has no use for a field."""

    image_row: Array | None  # [T], the row of the pool that stands in for its embedding, or NO_IMAGE
    horizon: Array | None  # [T], the last key that it sees and one more; 0 for its own
    rope: Array | None  # [3, T] by time, row and column; of a step that is not ragged [1, T], alike on all axes
    seen: Array | None = None  # [T], how many rows of the pool it sees in layers that attend to pictures
    run: Array | None = None  # [R, W], these rows of the pool, for the tokens of each row


@dataclass(frozen=True)
class Sight:
    """Which of the `SightFields` a step uploads.

    images, horizon: whether it has these.
    axes: how many rope positions a token has beside its own; 0 = none.
    past_window: whether windows hide nothing up to a token's horizon.
    run: W, the most rows of the pool that layers attend to at once; 0 = no layer does.
    """

    images: bool = False
    horizon: bool = False
    axes: int = 0
    past_window: bool = False
    run: int = 0

    @property
    def of_token(self) -> int:
        """Numbers of a token."""
        return self.images + self.horizon + self.axes + (self.run > 0)

    @property
    def pool(self) -> bool:
        """Whether the step reads the pool."""
        return self.images or self.run > 0

    def fields(self, packed: Array, rows: int) -> SightFields:
        """i32 [of_token · T + run · R] → the fields, of a step of `rows`."""
        if self.run:
            seen, run = packed[: -rows * self.run], packed[-rows * self.run :]
            return SightFields(None, None, None, seen, run.reshape(rows, self.run))
        lines = packed.reshape(self.of_token, -1)
        first = self.images + self.horizon
        return SightFields(
            lines[0] if self.images else None,
            lines[first - 1] if self.horizon else None,
            lines[first:] if self.axes else None,
        )


BLIND = SightFields(None, None, None)
NO_SIGHT = Sight()


class Parts(NamedTuple):
    """The buffer's sections, with a line for each field; of a NumPy buffer they are views."""

    tokens: Array  # i32 [fields, T]
    rows: Array  # i32 [fields, R]
    samples: Array  # i32 [fields, N]
    updates: Array  # i32 [fields, U]
    sight: SightFields


class Sections(NamedTuple):
    """The buffer in parts, field by field."""

    real: Array  # i32 [], how many of the T tokens are real
    sampled_only: Array  # i32 [], whether nothing is read of tokens without a sample; 0 or 1
    tokens: TokenFields
    rows: RowFields
    samples: Array  # i32 [fields, N], see `unpack_samples`
    updates: TableUpdates
    sight: SightFields


HEADER = 2  # numbers in front of the sections
SAMPLE_SLOT, TOKEN, PREVIOUS = (SampleFields._fields.index(name) for name in ("slot", "token", "previous"))
FLOATS = len(SampleFields._fields) - SampleFields._fields.index("temperature")


@dataclass(frozen=True)
class StepShape:
    """Sizes of a step's sections, padding included. A step of the encoder has no samples.

    Without `ragged` each row is one token and has one sample: T = R = N, in the same order. Without `adapters` no row
    may have one. `sight` is of a model that sees.
    """

    tokens: int
    rows: int
    samples: int
    updates: int
    ragged: bool
    adapters: bool = False
    sight: Sight = NO_SIGHT

    @property
    def size(self) -> int:
        return self._ends[-1]

    @property
    def verifies(self) -> bool:
        """Whether rows may have drafts."""
        return self.ragged and self.samples == self.tokens

    @cached_property
    def _ends(self) -> list[int]:
        """Where each section of the buffer ends."""
        tokens, rows = len(TokenFields._fields) * self.tokens, len(RowFields._fields) * self.rows
        samples, updates = len(SampleFields._fields) * self.samples, len(TableUpdates._fields) * self.updates
        return list(
            accumulate(
                (HEADER, tokens, rows, samples, updates, self.sight.of_token * self.tokens, self.sight.run * self.rows)
            )
        )

    def parts(self, packed: Array) -> Parts:
        """i32 [size] → its sections, each as one array."""
        header, tokens, rows, samples, updates, *_ = self._ends
        return Parts(
            packed[header:tokens].reshape(-1, self.tokens),
            packed[tokens:rows].reshape(-1, self.rows),
            packed[rows:samples].reshape(len(SampleFields._fields), self.samples),
            packed[samples:updates].reshape(-1, self.updates),
            self.sight.fields(packed[updates:], self.rows) if self.sight.of_token else BLIND,
        )

    def sections(self, packed: Array) -> Sections:
        """i32 [size] → its sections and their fields."""
        tokens, rows, samples, updates, sight = self.parts(packed)
        of_tokens, of_rows, updated = TokenFields(*tokens), RowFields(*rows), TableUpdates(*updates)
        return Sections(packed[0], packed[1], of_tokens, of_rows, samples, updated, sight)


def unpack_samples(packed: Array) -> SampleFields:
    """i32 [fields, N] → the fields, on the device."""
    floats = jax.lax.bitcast_convert_type(packed[-FLOATS:], jnp.float32)
    return SampleFields(*packed[:-FLOATS], *floats)
