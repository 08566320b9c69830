"""What the sampler remembers of each slot's sequence, on the device: counts, biases, bans, bad words.

Legend: S slots, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.request.sampling_params import MAX_EOS_TOKEN_IDS
from jaxengine.rpc.limits import MAX_BAD_WORD, MAX_BAD_WORDS, MAX_STOP_TOKEN_IDS

ANYTHING, NOTHING = -1, -2  # in front of a bad word, and of the first id that was generated: ids match neither
BANS = MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS  # ids a row can ban at once


class SamplerState(NamedTuple):
    """What processors remember per slot; the last slot is the sink."""

    seen: Array  # i32 [S, V], occurrences in prompt and generated ids
    generated: Array  # i32 [S, V]
    bias: Array  # f32 [S, V]
    bans: Array  # i32 [S, BANS], V where unused
    words: Array  # i32 [S, MAX_BAD_WORDS, MAX_BAD_WORD], as `padded_words` has them
    recent: Array  # i32 [S, MAX_BAD_WORD - 1], the ids generated last, NOTHING in front of the first


def empty_sampler_state(slots: int, vocab: int) -> SamplerState:
    shape = (slots + 1, vocab)
    return SamplerState(
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape, jnp.float32),
        jnp.full((slots + 1, BANS), vocab, jnp.int32),
        jnp.full((slots + 1, MAX_BAD_WORDS, MAX_BAD_WORD), vocab, jnp.int32),
        jnp.full((slots + 1, MAX_BAD_WORD - 1), NOTHING, jnp.int32),
    )


def padded_words(words: Sequence[Sequence[int]], vocab: int) -> np.ndarray:
    """Bad words as the device has them, i32 [MAX_BAD_WORDS, MAX_BAD_WORD]: ANYTHING in front, `vocab` where unused."""
    padded: np.ndarray = np.full((MAX_BAD_WORDS, MAX_BAD_WORD), vocab, np.int32)
    for row, word in zip(padded, words, strict=False):
        row[: -len(word)], row[-len(word) :] = ANYTHING, word
    return padded


def fill_slot(
    state: SamplerState,
    slot: Array,
    ids: Array,
    prompt_length: Array,
    length: Array,
    bias: tuple[Array, Array],
    bans: Array,
    words: Array,
    rest: Array,
) -> SamplerState:
    """Give `slot` to a sequence of `ids` [L], of which `length` are real and `prompt_length` the prompt's.

    `words` are `padded_words`; `rest` is the bias, 0 or -inf, of the ids that `bias` does not list.
    """
    vocab = state.seen.shape[1]
    index = jnp.arange(ids.shape[0])
    count = jnp.zeros(vocab, jnp.int32)
    seen = count.at[jnp.where(index < length, ids, vocab)].add(1, mode="drop")
    generated = count.at[jnp.where((index >= prompt_length) & (index < length), ids, vocab)].add(1, mode="drop")
    last = length - jnp.arange(MAX_BAD_WORD - 1, 0, -1)  # places of the last ids
    return SamplerState(
        state.seen.at[slot].set(seen),
        state.generated.at[slot].set(generated),
        state.bias.at[slot].set(jnp.full(vocab, rest, jnp.float32).at[bias[0]].set(bias[1], mode="drop")),
        state.bans.at[slot].set(bans),
        state.words.at[slot].set(words),
        state.recent.at[slot].set(jnp.where(last >= prompt_length, ids[jnp.maximum(last, 0)], NOTHING)),
    )
