"""The functions the device runs, as pure functions of arrays. The runner compiles them; no bucket is known here.

A step is `backbone` (tokens → hidden states, keys and values written in place) and `draw` (hidden states → token ids).
They are compiled apart because one depends on the number of tokens and the other on the number of rows: m + n graphs
instead of m x n. Legend: T tokens, R rows, S slots, W table width, N alternatives.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine import sampling
from jaxengine.model.decoder import Decoder, Layers
from jaxengine.model.embedding import Head
from jaxengine.ops import AttentionBatch
from jaxengine.sampling import Seats
from jaxengine.upload import LAST_TOKEN, PREVIOUS, SAMPLES, Layout, RowFields, unpack_rows

SCORE_BLOCK = 32  # rows whose logits over the vocabulary exist at once when a prompt is scored


class Rooms(NamedTuple):
    """What the device remembers per slot between steps; the last slot is the sink of padding."""

    table: Array  # i32 [S+1, W], the pages of the slot's sequence in order
    last: Array  # i32 [S+1], the token sampled last


@dataclass(frozen=True)
class Backbone:
    """A decoder split into its structure, closed over, and its leaves, passed in."""

    graph: Any
    structure: Any
    page_size: int

    @classmethod
    def split(cls, decoder: Decoder, page_size: int) -> tuple["Backbone", list[Array]]:
        graph, state = nnx.split(decoder)
        leaves, structure = jax.tree.flatten(state)
        return cls(graph, structure, page_size), leaves

    def __call__(
        self, layout: Layout, leaves: list[Array], layers: Layers, rooms: Rooms, packed: Array
    ) -> tuple[Layers, Rooms, Array, Array, Array]:
        """Returns caches and rooms; the packed rows [fields, R] and the hidden states [R, h] of their last tokens, for
        `draw`; and the hidden states [T, h] of every token, for `score`.
        """
        decoder = nnx.merge(self.graph, self.structure.unflatten(leaves))
        count, tokens, packed_rows, updates = layout.sections(packed)
        rows = unpack_rows(packed_rows)
        table = rooms.table.at[updates.slot, updates.place].set(updates.page, mode="drop")
        sink = jnp.int32(table.shape[0] - 1)
        slot = jnp.append(rows.slot, sink)[tokens.row]  # [T]
        prompt_length = jnp.append(rows.prompt_length, 0)[tokens.row]
        batch = AttentionBatch(
            position=tokens.position,
            prompt_length=prompt_length,
            row=tokens.row,
            page=table[slot, tokens.position // self.page_size],
            offset=tokens.position % self.page_size,
            tables=table[rows.slot],
            tokens=count,
            ragged=layout.ragged,
        )
        ids = jnp.where(tokens.id == LAST_TOKEN, rooms.last[slot], tokens.id)
        hidden, layers = decoder(ids, layers, batch)
        drawn = hidden[rows.last] if layout.ragged else hidden
        packed_rows = packed_rows.at[PREVIOUS].set(ids[rows.last])
        return layers, rooms._replace(table=table), packed_rows, drawn, hidden


def draw_greedy(top: int, head: Head, last: Array, packed_rows: Array, hidden: Array) -> tuple[Array, Array]:
    """For a step whose rows all want the model's own argmax: the new `last` and the packed result."""
    sampled = sampling.greedy(head(hidden), top)
    return _remember(last, unpack_rows(packed_rows), sampled.id), pack_sampled(sampled)


def draw(
    top: int, head: Head, last: Array, seats: Seats, packed_rows: Array, hidden: Array
) -> tuple[Array, Seats, Array]:
    """For a step where any row wants more: the new `last` and `seats`, and the packed result."""
    rows = unpack_rows(packed_rows)
    sampled, seats = sampling.sample(head(hidden), rows, seats, top)
    return _remember(last, rows, sampled.id), seats, pack_sampled(sampled)


def _remember(last: Array, rows: RowFields, ids: Array) -> Array:
    sink = last.shape[0] - 1
    return last.at[jnp.where(rows.flags & SAMPLES != 0, rows.slot, sink)].set(ids)


def pack_sampled(sampled: sampling.Sampled) -> Array:
    """One i32 [R, 3 + 2N] for one transfer: id, logprob's bits, finite, alternatives' ids, their logprobs' bits."""
    bits = jax.lax.bitcast_convert_type
    return jnp.concatenate(
        [
            sampled.id[:, None],
            bits(sampled.logprob, jnp.int32)[:, None],
            sampled.finite.astype(jnp.int32)[:, None],
            sampled.top_id,
            bits(sampled.top_logprob, jnp.int32),
        ],
        axis=1,
    )


def score(top: int, head: Head, hidden: Array, target: Array) -> Array:
    """How likely each token's successor was: hidden [T, h], target [T] → packed as `pack_sampled`, [T, 3 + 2N]."""
    tokens = hidden.shape[0]
    block = min(SCORE_BLOCK, tokens)

    def one_block(part: tuple[Array, Array]) -> Array:
        logits = head(part[0])  # [block, V]
        logprob = jnp.take_along_axis(jax.nn.log_softmax(logits), part[1][:, None], axis=1)[:, 0]
        top_id, top_logprob = sampling.top_logprobs(logits, top)
        finite = jnp.isfinite(logits).all(axis=-1)
        return pack_sampled(sampling.Sampled(part[1], logprob, finite, top_id, top_logprob))

    parts = hidden.reshape(-1, block, hidden.shape[1]), target.reshape(-1, block)
    return jax.lax.map(one_block, parts).reshape(tokens, -1)


def place(table: Array, updates: Array) -> Array:
    """Write page-table entries [3, U] (slot, index, page) that did not fit a step's own upload."""
    return table.at[updates[0], updates[1]].set(updates[2], mode="drop")
