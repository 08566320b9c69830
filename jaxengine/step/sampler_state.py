"""What the sampler remembers of each slot's sequence, on the device: counts, biases, bans, bad words, masks.

Legend: S slots, D guesses of a step, V vocabulary.
"""

from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from jaxengine.grammar.mask import words
from jaxengine.request.sampling_params import MAX_EOS_TOKEN_IDS
from jaxengine.rpc.limits import MAX_BAD_WORD_IDS, MAX_BAD_WORDS, MAX_STOP_TOKEN_IDS

ANYTHING, NOTHING = -1, -2  # in front of a bad word, and of the first id that was generated: ids match neither
BANS = MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS  # ids that a sequence can ban at once


class SamplerState(NamedTuple):
    """What logits processors remember per slot. The last slot is the sink: padding writes there."""

    seen: Array  # i32 [S+1, V], occurrences in prompt and generated ids
    generated: Array  # i32 [S+1, V]
    bias: Array  # f32 [S+1, V]
    bans: Array  # i32 [S+1, BANS], V where unused
    bad_words: Array  # i32 [S+1, MAX_BAD_WORDS, MAX_BAD_WORD_IDS], as `padded_words` has them
    recent: Array  # i32 [S+1, MAX_BAD_WORD_IDS - 1], the ids generated last, NOTHING in front of the first
    # i32 [S+1+D, ⌈V/32⌉], a 1 for each id that a grammar allows next, read where a sample is MASKED. The last D are of
    # samples behind guesses, in the order in which they stand in a step.
    mask: Array

    @classmethod
    def empty(cls, slots: int, vocab: int, guesses: int = 0) -> Self:
        """Of so many slots, and for steps of so many guesses."""
        shape = (slots + 1, vocab)
        return cls(
            seen=jnp.zeros(shape, jnp.int32),
            generated=jnp.zeros(shape, jnp.int32),
            bias=jnp.zeros(shape, jnp.float32),
            bans=jnp.full((slots + 1, BANS), vocab, jnp.int32),
            bad_words=jnp.full((slots + 1, MAX_BAD_WORDS, MAX_BAD_WORD_IDS), vocab, jnp.int32),
            recent=jnp.full((slots + 1, MAX_BAD_WORD_IDS - 1), NOTHING, jnp.int32),
            mask=jnp.full((slots + 1 + guesses, words(vocab)), -1, jnp.int32),
        )
