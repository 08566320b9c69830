"""What the sampler remembers of each slot's sequence, on the device: ids, counts, biases, bans, bad words, masks, and
the values of its samplers.

Legend: S slots, D guesses of a step, V vocabulary, H ids that samplers look back.
"""

from typing import NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from jaxengine.grammar.mask import words
from jaxengine.request.sampling_params import MAX_EOS_TOKEN_IDS
from jaxengine.rpc.limits import MAX_BAD_WORD_IDS, MAX_BAD_WORDS, MAX_LOOK_BACK, MAX_STOP_TOKEN_IDS

ANYTHING, NOTHING = -1, -2  # in front of a bad word, and of the first id that was generated: ids match neither
BANS = MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS  # ids that a sequence can ban at once


class FilterValues(NamedTuple):
    """The numbers of `Samplers`, f32 each; the temperature's are those of its lower and upper end."""

    temperature_low: Array
    temperature_high: Array
    temperature_exponent: Array
    top_n_sigma: Array
    top_a: Array
    epsilon_cutoff: Array
    eta_cutoff: Array
    smoothing_factor: Array
    smoothing_curve: Array
    xtc_threshold: Array
    xtc_probability: Array
    skew: Array
    mirostat_tau: Array  # 0 where another filters
    mirostat_eta: Array
    repetition_range: Array
    repetition_slope: Array
    no_repeat_ngram_size: Array
    dry_multiplier: Array
    dry_base: Array
    dry_allowed_length: Array
    dry_range: Array
    penalties_first: Array


class SamplerState(NamedTuple):
    """What logits processors remember per slot. The last slot is the sink: padding writes there."""

    seen: Array  # i32 [S+1, V], occurrences in prompt and generated ids
    generated: Array  # i32 [S+1, V]
    bias: Array  # f32 [S+1, V]
    bans: Array  # i32 [S+1, BANS], V where unused
    bad_words: Array  # i32 [S+1, MAX_BAD_WORDS, MAX_BAD_WORD_IDS], as `padded_words` has them
    recent: Array  # i32 [S+1, MAX_BAD_WORD_IDS - 1], the ids generated last, NOTHING in front of the first
    history: Array  # i32 [S+1, H], the id at position p in column p mod H
    values: Array  # f32 [S+1, fields of FilterValues]
    breakers: Array  # i32 [S+1, ⌈V/32⌉], a 1 for each id that ends a repetition
    surprise: Array  # f32 [S+1], mirostat's bound, in bits
    # i32 [S+1+D, ⌈V/32⌉], a 1 for each id that a grammar allows next, read where a sample is MASKED. The last D are of
    # samples behind guesses, in the order in which they stand in a step.
    mask: Array

    @classmethod
    def empty(cls, slots: int, vocab: int, longest: int, guesses: int = 0) -> Self:
        """Of so many slots, for requests of so many tokens at most, and for steps of so many guesses."""
        shape = (slots + 1, vocab)
        return cls(
            seen=jnp.zeros(shape, jnp.int32),
            generated=jnp.zeros(shape, jnp.int32),
            bias=jnp.zeros(shape, jnp.float32),
            bans=jnp.full((slots + 1, BANS), vocab, jnp.int32),
            bad_words=jnp.full((slots + 1, MAX_BAD_WORDS, MAX_BAD_WORD_IDS), vocab, jnp.int32),
            recent=jnp.full((slots + 1, MAX_BAD_WORD_IDS - 1), NOTHING, jnp.int32),
            history=jnp.zeros((slots + 1, min(longest, MAX_LOOK_BACK)), jnp.int32),
            values=jnp.zeros((slots + 1, len(FilterValues._fields)), jnp.float32),
            breakers=jnp.zeros((slots + 1, words(vocab)), jnp.int32),
            surprise=jnp.zeros(slots + 1, jnp.float32),
            mask=jnp.full((slots + 1 + guesses, words(vocab)), -1, jnp.int32),
        )
