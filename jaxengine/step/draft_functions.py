"""What a draft model computes on the device: it reads tokens that it has not read yet, and guesses what follows them.

Its caches have the pages of the target's: a token's keys and values lie in the page that the target's first page table
has for its position. Whatever is in them, only guesses depend on it. EAGLE's layers run alike, but what they read at a
position is the feature that the target left there and the token behind it.
Legend: T tokens, R rows, W width of a page table, K guesses.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.model import feature_decoder
from jaxengine.model.decoder import Layers
from jaxengine.model.draft_decoder import DraftDecoder
from jaxengine.model.drafter import Guesses
from jaxengine.model.eagle import EagleDecoder
from jaxengine.model.feature_decoder import Features
from jaxengine.ops import StepBatch
from jaxengine.step.buffer import TokenFields
from jaxengine.step.functions import Split

Carry = tuple[Layers, Array, Array]  # caches, guesses that are not read yet [R], and the features to read them with

SINK = 0  # the page of padding
MOST_UNROLLED = 8  # guesses; the graph of more is a loop


class DraftRowFields(NamedTuple):
    """i32 [R] each."""

    last: Array  # index among the T of the row's last token
    capacity: Array  # tokens that its pages can hold; 0 for padding
    rope_length: Array  # as of `RowFields`


class DraftSections(NamedTuple):
    """The buffer in parts; of a NumPy buffer they are views."""

    real: Array  # i32 [2], how many of the T tokens are real, and of the R rows
    tokens: TokenFields
    rows: DraftRowFields
    tables: Array  # i32 [R, W]


@dataclass(frozen=True)
class DraftShape:
    """Sizes of what a draft model is sent, padding included."""

    tokens: int
    rows: int
    width: int

    @property
    def size(self) -> int:
        return self._ends[-1]

    @cached_property
    def _ends(self) -> list[int]:
        """Where each section of the buffer ends."""
        tokens, rows = len(TokenFields._fields) * self.tokens, len(DraftRowFields._fields) * self.rows
        return list(accumulate((2, tokens, rows, self.rows * self.width)))

    def sections(self, packed: Any) -> DraftSections:
        """i32 [size] → its sections."""
        real, tokens, rows, _ = self._ends
        return DraftSections(
            packed[:real],
            TokenFields(*packed[real:tokens].reshape(-1, self.tokens)),
            DraftRowFields(*packed[tokens:rows].reshape(-1, self.rows)),
            packed[rows:].reshape(self.rows, self.width),
        )


class DraftUpload:
    """The buffer while the host fills it; as made, nothing but padding."""

    def __init__(self, shape: DraftShape) -> None:
        self.buffer = np.zeros(shape.size, np.int32)
        self.sections: Any = shape.sections(self.buffer)
        self.sections.tokens.row[:] = shape.rows

    def add(self, ids: list[int], first: int, table: np.ndarray, capacity: int, rope_length: int) -> None:
        """One more row: `ids` read at the positions from `first` on, of a sequence with the page table `table` [W]."""
        (begin, row), (_, tokens, rows, tables) = self.sections.real.tolist(), self.sections
        end = begin + len(ids)
        tokens.id[begin:end], tokens.position[begin:end] = ids, np.arange(first, first + len(ids))
        tokens.row[begin:end] = row
        rows.last[row], rows.capacity[row], rows.rope_length[row] = end - 1, capacity, rope_length
        tables[row] = table
        self.sections.real[:] = end, row + 1


class Draft(Split):
    """The functions of a `DraftDecoder` or an `EagleDecoder`; the target keeps `features` for the latter."""

    def read(self, shape: DraftShape, leaves: list[Array], layers: Layers, features: Features, packed: Array) -> Layers:
        """The caches with the tokens of `packed` read."""
        return self._read(self.merged(leaves, {}), shape.sections(packed), layers, features)[1]

    def guess(
        self, shape: DraftShape, leaves: list[Array], layers: Layers, features: Features, packed: Array
    ) -> tuple[Layers, Array]:
        """Read the tokens of `packed`, and guess what comes behind the last of each row. Each guess but the last is
        read too, if there is a page for it.

        Returns the caches, and i32 [R, 2K]: ids, then the bits of their chances.
        """
        module: DraftDecoder | EagleDecoder = self.merged(leaves, {})
        sections = shape.sections(packed)
        rows, tables = sections.rows, sections.tables
        hidden, layers = self._read(module, sections, layers, features)
        first, feature = module.guess(hidden[rows.last])
        behind, number = sections.tokens.position[rows.last] + 1, jnp.arange(shape.rows)

        def read_guess(carry: Carry, i: Array) -> tuple[Carry, Guesses]:
            layers, ids, feature = carry
            # Where there is no page any more, the guess is read in place of the last token that has one, into the sink.
            position = jnp.maximum(jnp.minimum(behind + i, rows.capacity - 1), 0)
            page = jnp.where(behind + i < rows.capacity, tables[number, position // self.page_size], SINK)
            offset = position % self.page_size
            real = sections.real[1]
            batch = StepBatch(position, rows.rope_length, number, page, offset, tables, real, ragged=False)
            hidden, layers = module(ids, feature, layers, batch)
            next, feature = module.guess(hidden)
            return (layers, next.id, feature), next

        count = module.guesses - 1
        unroll = not module.device.on_host and count < MOST_UNROLLED
        carry: Any = (layers, first.id, feature)
        (layers, _, _), others = jax.lax.scan(read_guess, carry, jnp.arange(count), unroll=unroll)
        ids, chances = (jnp.concatenate([one[None], more]).T for one, more in zip(first, others, strict=True))
        return layers, jnp.concatenate([ids, jax.lax.bitcast_convert_type(chances, jnp.int32)], axis=1)

    def _read(
        self, module: DraftDecoder | EagleDecoder, sections: DraftSections, layers: Layers, features: Features
    ) -> tuple[Array, Layers]:
        """The hidden states [T, h] of all tokens, and the caches with them."""
        _, tokens, rows, tables = sections
        padded = jnp.concatenate([tables, jnp.full_like(tables[:1], SINK)])  # the row of padding is the last
        batch = StepBatch(
            position=tokens.position,
            rope_length=jnp.append(rows.rope_length, 0)[tokens.row],
            row=tokens.row,
            page=padded[tokens.row, tokens.position // self.page_size],
            offset=tokens.position % self.page_size,
            tables=tables,
            tokens=sections.real[0],
            ragged=True,
        )
        kept = [feature_decoder.read(each, batch) for each in features]
        return module(tokens.id, kept[0] if kept else None, layers, batch)  # type: ignore[arg-type]
