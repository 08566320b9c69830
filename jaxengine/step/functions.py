"""The functions the device runs, as pure functions of arrays. The runner compiles them; no bucket is known here.

A step is `Backbone` (tokens → hidden states, with keys and values written in place) and `sample` (hidden states →
token ids). The two are compiled apart because the first depends on the number of tokens and the second on the number of
samples: m + n graphs instead of m x n. Where the model has an encoder, `Encode` reads the prompts of new requests
before their rows run.
Legend: T tokens, R rows, N samples, S slots, G page tables of a sequence and W their width, A alternatives.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.model.decoder import Decoder, Layers
from jaxengine.model.drafter import Drafter
from jaxengine.model.embedding import Head
from jaxengine.model.encoder import Encoder
from jaxengine.model.image_rows import ImageRows, Images, PictureCaches
from jaxengine.ops import StepBatch
from jaxengine.ops.adapters import AdapterStack, AdapterTokens
from jaxengine.ops.batch import Wanted, row_starts
from jaxengine.step import sampling
from jaxengine.step.buffer import (
    LAST_TOKEN,
    PREVIOUS,
    SAMPLE_SLOT,
    TOKEN,
    RowFields,
    SampleFields,
    SightFields,
    StepShape,
    TokenFields,
    unpack_samples,
)
from jaxengine.step.sampler_state import SamplerState
from jaxengine.step.verification import counted

Adapters = dict[str, AdapterStack]  # by the name of the matrix; empty where a step has no adapters

LOGITS_BLOCK = 32  # tokens of a prompt whose logits over the vocabulary exist at once


class Latest(NamedTuple):
    """What was sampled last in each slot, the sink among them."""

    id: Array  # i32 [S+1]
    hidden: tuple[Array, ...] = ()  # [S+1, h], the hidden state of which it was made; none where no drafter reads it


class SlotState(NamedTuple):
    """What the device remembers per slot between steps; the last slot is the sink of padding."""

    table: Array  # i32 [G·(S+1), W], the pages of the slot's sequence in order, table after table
    latest: Latest


class Unpacked(NamedTuple):
    """A step's upload on the device, and the page table with its updates."""

    real: Array  # i32 [], how many tokens are
    sampled_only: Array  # i32 [], whether nothing is read of tokens without a sample
    tokens: TokenFields
    rows: RowFields
    packed_samples: Array  # i32 [fields, N]
    table: Array
    slot: Array  # i32 [T], the sink for padding
    slots: int  # S+1
    sight: SightFields

    @classmethod
    def of(cls, shape: StepShape, slot_state: SlotState, packed: Array) -> "Unpacked":
        real, sampled_only, tokens, rows, packed_samples, updates, sight = shape.sections(packed)
        table = slot_state.table.at[updates.row, updates.column].set(updates.page, mode="drop")
        slots = slot_state.latest.id.shape[0]
        slot = jnp.append(rows.slot, jnp.int32(slots - 1))[tokens.row]
        return cls(real, sampled_only, tokens, rows, packed_samples, table, slot, slots, sight)

    def per_token(self, of_row: Array) -> Array:
        """[R] → [T], 0 for padding."""
        return jnp.append(of_row, 0)[self.tokens.row]

    def batches(self, shape: StepShape, page_size: int, adapters: Adapters) -> list[StepBatch]:
        """One for each page table of a sequence. Positions count from the start of their slot's pages."""
        of_tokens = None
        if shape.adapters:
            slots = next(iter(adapters.values())).slots
            number = self.per_token(self.rows.adapter)
            of_tokens = AdapterTokens.of(jnp.where(number > 0, number - 1, slots), slots)
        position, rope_length = self.tokens.position, self.per_token(self.rows.rope_length)
        entry, offset = position // page_size, position % page_size
        rope = self.sight.rope
        return [
            StepBatch(
                position=position,
                rope_length=rope_length,
                row=self.tokens.row,
                page=self.table[first + self.slot, entry],
                offset=offset,
                tables=self.table[first + self.rows.slot],
                tokens=self.real,
                ragged=shape.ragged,
                adapters=of_tokens,
                rope_position=rope if rope is None or shape.sight.axes > 1 else rope[0],
                horizon=self.sight.horizon,
                past_window=shape.sight.past_window,
            )
            for first in range(0, self.table.shape[0], self.slots)
        ]

    def of_slots(self, batch: StepBatch) -> StepBatch:
        """`batch`, but with slots in place of pages: for layers that keep states of a sequence."""
        return replace(batch, page=self.slot, tables=self.rows.slot[:, None])

    def wanted(self) -> Wanted:
        """What is read of the last layer."""
        return Wanted(self.sampled_only > 0, self.packed_samples[TOKEN], self.first_sampled())

    def first_sampled(self) -> Array:
        """i32 [R]: each row's first token that has a sample; T if it has none."""
        tokens, rows = self.tokens.row.shape[0], self.rows.slot.shape[0]
        token = self.packed_samples[TOKEN]
        of = jnp.where(self.packed_samples[SAMPLE_SLOT] < self.slots - 1, self.tokens.row[token], rows)
        return jnp.full(rows, tokens).at[of].min(token, mode="drop")

    def settled(self, batch: StepBatch) -> StepBatch:
        """`batch` of a step that may verify drafts, with which layers keep no state of a guess: what has a sample in
        front of it.
        """
        first = self.first_sampled()
        ends = row_starts(batch)[1:]
        return replace(batch, settled=jnp.where(first < self.tokens.row.shape[0], first + 1, ends))

    def after_encoder_pages(self, batch: StepBatch, page_size: int) -> StepBatch:
        """`batch`, but positions count from behind the pages of the source, which are read too."""
        pages = -(-self.rows.encoder_length // page_size)  # [R]
        columns = jnp.minimum(pages[:, None] + jnp.arange(self.table.shape[1]), self.table.shape[1] - 1)
        return replace(
            batch,
            page=self.table[self.slot, self.per_token(pages) + batch.position // page_size],
            tables=self.table[self.rows.slot[:, None], columns],
            cross=replace(batch, noncausal_length=self.per_token(self.rows.encoder_length)),
        )


@dataclass(frozen=True)
class Split:
    """A module split into its structure, closed over, and its leaves, passed in.

    adapted: of each leaf, the matrix whose adapters it is; None for a weight. Stacks of adapters are passed by name.
    """

    graph: Any
    structure: Any
    page_size: int
    adapted: tuple[str | None, ...]

    @property
    def __name__(self) -> str:
        """The program's, in traces."""
        return self.__class__.__qualname__.lower()

    @classmethod
    def of(cls, module: nnx.Module, page_size: int) -> tuple[Self, list[Array]]:
        graph, state = nnx.split(module)
        leaves, structure = jax.tree.flatten(state, is_leaf=_is_stack)
        adapted = tuple(leaf.name if _is_stack(leaf) else None for leaf in leaves)
        return cls(graph, structure, page_size, adapted), [leaf for leaf in leaves if not _is_stack(leaf)]

    def merged(self, leaves: list[Array], adapters: Adapters) -> Any:
        weights = iter(leaves)
        whole = [next(weights) if name is None else adapters[name] for name in self.adapted]
        return nnx.merge(self.graph, self.structure.unflatten(whole))


def _is_stack(node: Any) -> bool:
    return isinstance(node, AdapterStack)


class Encode(Split):
    """Prompts through the encoder, each whole: the caches with what the decoder will read of them."""

    def __call__(
        self,
        shape: StepShape,
        leaves: list[Array],
        adapters: Adapters,
        layers: Layers,
        slot_state: SlotState,
        packed: Array,
    ) -> tuple[Layers, SlotState]:
        encoder: Encoder = self.merged(leaves, adapters)
        step = Unpacked.of(shape, slot_state, packed)
        (batch,) = step.batches(shape, self.page_size, adapters)
        batch = replace(batch, noncausal_length=step.per_token(step.rows.encoder_length))
        return encoder(step.tokens.id, layers, batch), slot_state._replace(table=step.table)


class Backbone(Split):
    """Tokens through the decoder."""

    def __call__(
        self,
        shape: StepShape,
        drafts: bool,
        leaves: list[Array],
        adapters: Adapters,
        layers: Layers,
        slot_state: SlotState,
        packed: Array,
        pool: Any = None,
    ) -> tuple[Layers, SlotState, Array, Array, Array | None]:
        """Returns the caches and the slot state; for `sample` the packed samples [fields, N] and their hidden states
        [N, h]; and for `score`, of a ragged step, the hidden states [T, h] of all tokens, if any but those are read.

        `drafts` tells whether any step verifies some. `pool` is what a model has seen, for a step whose tokens may be
        of images or whose layers attend to any, see `step/see.py`.
        """
        decoder: Decoder = self.merged(leaves, adapters)
        step = Unpacked.of(shape, slot_state, packed)
        batches = step.batches(shape, self.page_size, adapters)
        if decoder.spec.encoder is not None:
            batches = [step.after_encoder_pages(batch, self.page_size) for batch in batches]
        if decoder.spec.recurrent_layers:
            batches.append(step.of_slots(batches[0]))
        if decoder.spec.keeps_states and drafts and shape.verifies:
            batches[-1] = step.settled(batches[-1])
        ids = jnp.where(step.tokens.id == LAST_TOKEN, slot_state.latest.id[step.slot], step.tokens.id)
        seen = _seen(decoder.spec, pool, step.sight, batches[0])
        if shape.ragged and shape.samples < shape.tokens and _drops_unwanted(decoder):
            hidden, layers = decoder(ids, layers, batches, seen, step.wanted())
        else:
            hidden, layers = decoder(ids, layers, batches, seen)
        slot_state = slot_state._replace(table=step.table)
        if not shape.ragged:  # sample i is of token i
            return layers, slot_state, step.packed_samples.at[PREVIOUS].set(ids), hidden, None
        token, field = step.packed_samples[TOKEN], jnp.arange(step.packed_samples.shape[0])[:, None]
        packed_samples = jnp.where(field == PREVIOUS, ids[token], step.packed_samples)  # `set` takes a GPU kernel more
        return layers, slot_state, packed_samples, hidden[token], hidden


def _drops_unwanted(decoder: Any) -> bool:
    """Whether it can tell what is read of it. What EAGLE's layers read is of every token."""
    return isinstance(decoder, Decoder) and decoder.device.drops_unwanted


def _seen(spec: ModelSpec, pool: Any, sight: SightFields, batch: StepBatch) -> Images | None:
    """What the step's tokens see of `pool`, if the step has it."""
    if pool is None or spec.vision is None:
        return None
    if sight.seen is not None and sight.run is not None:
        return PictureCaches.of(pool, sight.seen, sight.run, spec.vision.places, batch)
    return None if sight.image_row is None else ImageRows.of(pool, sight.image_row)


def sample_greedy(
    top: int, guesses: int, head: Head, latest: Latest, packed_samples: Array, hidden: Array
) -> tuple[Latest, Array]:
    """For a step whose samples all want the model's own argmax: the new `latest` and the packed result. A row may have
    so many `guesses`, 0 where no step verifies any.
    """
    sampled = sampling.greedy(head(hidden), top)
    samples = unpack_samples(packed_samples)
    return _after(latest, sampled.id, hidden, samples, guesses), pack_sampled(sampled)


def sample(
    top: int,
    guesses: int,
    head: Head,
    latest: Latest,
    sampler_state: SamplerState,
    packed_samples: Array,
    hidden: Array,
) -> tuple[Latest, SamplerState, Array]:
    """For a step where any sample wants more: the new `latest` and `sampler_state`, and the packed result."""
    samples = unpack_samples(packed_samples)
    sampled, sampler_state = sampling.sample(head(hidden), samples, sampler_state, top, guesses)
    return _after(latest, sampled.id, hidden, samples, guesses), sampler_state, pack_sampled(sampled)


def _after(latest: Latest, ids: Array, hidden: Array, samples: SampleFields, guesses: int) -> Latest:
    """`latest` once `ids` [N] are sampled of `hidden` [N, h]: of each slot, the last that counts."""
    slot = samples.slot
    if guesses:
        slot = jnp.where(counted(ids, samples).last, slot, latest.id.shape[0] - 1)
    return jax.tree.map(lambda old, new: old.at[slot].set(new), latest, Latest(ids, (hidden,) * len(latest.hidden)))


def propose(drafter: Drafter, latest: Latest, slots: Array) -> Array:
    """What `drafter` guesses behind the last tokens of `slots` [n], as one i32 [n, 2 · guesses]: ids, then the bits of
    their chances.
    """
    guesses = drafter(latest.hidden[0][slots], latest.id[slots])
    return jnp.concatenate([guesses.id, jax.lax.bitcast_convert_type(guesses.chance, jnp.int32)], axis=1)


def pack_sampled(sampled: sampling.Sampled) -> Array:
    """One i32 [N, 3 + 2A] for one transfer: id, logprob's bits, those of `surprise` or of NaN where the logits were not
    finite, alternatives' ids, their logprobs' bits.
    """
    third = jax.lax.bitcast_convert_type(jnp.where(sampled.finite, sampled.surprise, jnp.nan), jnp.int32)
    return _pack(sampled.id, sampled.logprob, third, sampled.top_id, sampled.top_logprob)


def _pack(ids: Array, logprob: Array, third: Array, top_id: Array, top_logprob: Array) -> Array:
    bits = jax.lax.bitcast_convert_type
    columns = ids[:, None], bits(logprob, jnp.int32)[:, None], third[:, None], top_id, bits(top_logprob, jnp.int32)
    return jnp.concatenate(columns, axis=1)


def score(top: int, head: Head, hidden: Array, target: Array) -> Array:
    """How likely each token's successor was: hidden [T, h], target [T] → packed as `pack_sampled`, [T, 3 + 2A], with
    the successor's rank in the third column.
    """
    tokens = hidden.shape[0]
    block = min(LOGITS_BLOCK, tokens)

    def one_block(part: tuple[Array, Array]) -> Array:
        logits = head(part[0])  # [block, V]
        logprob = jnp.take_along_axis(jax.nn.log_softmax(logits), part[1][:, None], axis=1)[:, 0]
        top_id, top_logprob = sampling.top_logprobs(logits, top)
        own = jnp.take_along_axis(logits, part[1][:, None], axis=1)  # [block, 1]
        rank = 1 + jnp.sum(logits > own, axis=-1)
        return _pack(part[1], logprob, rank, top_id, top_logprob)

    parts = hidden.reshape(-1, block, hidden.shape[1]), target.reshape(-1, block)
    return jax.lax.map(one_block, parts).reshape(tokens, -1)


def logits(tokens: int, head: Head, hidden: Array) -> Array:
    """hidden [n, h] → f32 [n, tokens]: as the model has them, without the vocabulary's padding."""
    return head(hidden)[:, :tokens]


def sum_hidden(rows: int, hidden: Array, row: Array) -> Array:
    """The sums over the tokens of each row, f32 [rows, h]: hidden [T, h], row [T]. Tokens whose row is `rows` or
    more count for nothing.
    """
    return jnp.zeros((rows, hidden.shape[1]), jnp.float32).at[row].add(hidden.astype(jnp.float32), mode="drop")


def place_adapter(adapters: Adapters, slot: Array, new: dict[str, tuple[Array, Array]]) -> Adapters:
    """`adapters` with slot `slot`, i32 [], of each matrix replaced: a [M·R, in…] and b [U, R, out…]."""

    def placed(name: str, stack: AdapterStack) -> AdapterStack:
        a, b = new[name]
        return replace(stack, a=stack.a.at[slot].set(a), b=stack.b.at[:, slot].set(b))

    return {name: placed(name, stack) for name, stack in adapters.items()}


def write_page_table(table: Array, updates: Array) -> Array:
    """Write page-table entries [3, U] (row, column, page) that did not fit a step's own upload."""
    return table.at[updates[0], updates[1]].set(updates[2], mode="drop")


def copy_places(numbers: Collection[int], layers: Layers, source: Array, target: Array) -> Layers:
    """`layers`, in those of which with one of `numbers` the places `target` [n], pages or slots, are as the places
    `source` [n] were. Padding copies the sink to itself.
    """
    return tuple(_copied(cache, source, target) if i in numbers else cache for i, cache in enumerate(layers))


def _copied(cache: Array, source: Array, target: Array) -> Array:
    """cache [L, places, …]"""
    layer = jnp.arange(cache.shape[0])[:, None]  # XLA transposes a cache of which only places are indexed
    return cache.at[layer, target].set(cache[layer, source])


def write_masks(mask: Array, slots: Array, new: Array) -> Array:
    """`SamplerState.mask` with the rows `slots` [n] replaced by `new` [n, ⌈V/32⌉]. Padding names the sink."""
    return mask.at[slots].set(new)
