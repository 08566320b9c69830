"""What the sampler's state is filled with when a sequence takes a slot: one record on host and device.

Only a sequence whose parameters need state is recorded, see `needs_sampler_state`.
Legend: L tokens of the longest request, V vocabulary.
"""

from collections.abc import Sequence as Items
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Sharding

from jaxengine.grammar import mask
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Sequence
from jaxengine.rpc.limits import MAX_BAD_WORD_IDS, MAX_BAD_WORDS, MAX_LOGIT_BIAS
from jaxengine.step.sampler_state import ANYTHING, BANS, NOTHING, FilterValues, SamplerState


class SamplerSlot(NamedTuple):
    """One slot's sequence. `of` makes it of NumPy values, `abstract` of shapes; a jitted function gets arrays."""

    slot: Array  # i32 []
    ids: Array  # i32 [L], prompt and generated ids, V behind the last
    prompt_length: Array  # i32 []
    length: Array  # i32 [], how many of `ids` are real
    bias_ids: Array  # i32 [MAX_LOGIT_BIAS], V where unused
    bias: Array  # f32 [MAX_LOGIT_BIAS], added to the logits of `bias_ids`
    other_bias: Array  # f32 [], 0 or -inf, added to the logits of all other ids
    bans: Array  # i32 [BANS], V where unused
    bad_words: Array  # i32 [MAX_BAD_WORDS, MAX_BAD_WORD_IDS], as `padded_words` has them
    values: Array  # f32 [fields of FilterValues]
    breakers: Array  # i32 [⌈V/32⌉], a 1 for each id that ends a repetition
    surprise: Array  # f32 [], mirostat's bound, in bits

    @classmethod
    def of(cls, sequence: Sequence, eos_token_ids: Items[int], longest: int, vocab: int) -> Self:
        params = sequence.params
        stops = () if params.ignore_eos else eos_token_ids
        return cls(
            slot=_scalar(sequence.slot),
            ids=_padded(sequence.tokens, longest, vocab),
            prompt_length=_scalar(sequence.prompt_length),
            length=_scalar(len(sequence.tokens)),
            bias_ids=_padded(list(params.logit_bias), MAX_LOGIT_BIAS, vocab),
            bias=_padded(list(params.logit_bias.values()), MAX_LOGIT_BIAS, 0, np.float32),
            other_bias=_scalar(-np.inf if params.only_biased else 0, np.float32),
            bans=_padded([*stops, *params.stop_token_ids], BANS, vocab),
            bad_words=padded_words(params.bad_words, vocab),
            values=_filter_values(params),
            breakers=_bits(params.samplers.dry_breakers, vocab),
            surprise=_scalar(sequence.surprise, np.float32),
        )

    @classmethod
    def abstract(cls, longest: int, vocab: int, sharding: Sharding) -> Self:
        """The shapes of what `of` makes, for lowering."""

        def array(*shape: int, dtype: Any = jnp.int32) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        return cls(
            slot=array(),
            ids=array(longest),
            prompt_length=array(),
            length=array(),
            bias_ids=array(MAX_LOGIT_BIAS),
            bias=array(MAX_LOGIT_BIAS, dtype=jnp.float32),
            other_bias=array(dtype=jnp.float32),
            bans=array(BANS),
            bad_words=array(MAX_BAD_WORDS, MAX_BAD_WORD_IDS),
            values=array(len(FilterValues._fields), dtype=jnp.float32),
            breakers=array(mask.words(vocab)),
            surprise=array(dtype=jnp.float32),
        )


def needs_sampler_state(sequence: Sequence) -> bool:
    """Whether the sampler keeps state for `sequence` in its slot."""
    params = sequence.params
    if params.penalised or params.logit_bias or params.bad_words or params.min_tokens:
        return True
    return not params.samplers.neutral


def counts_tokens(sequence: Sequence) -> bool:
    """Whether that state is another for another text."""
    params = sequence.params
    return params.penalised or bool(params.bad_words) or params.looks_back


def fill_slot(state: SamplerState, new: SamplerSlot) -> SamplerState:
    """`state` once the sequence of `new` has taken its slot. Its mask is written where a step needs it."""
    vocab = state.seen.shape[1]
    index = jnp.arange(new.ids.shape[0])
    real, count = index < new.length, jnp.zeros(vocab, jnp.int32)
    seen = count.at[jnp.where(real, new.ids, vocab)].add(1, mode="drop")
    generated = count.at[jnp.where(real & (index >= new.prompt_length), new.ids, vocab)].add(1, mode="drop")
    bias = jnp.full(vocab, new.other_bias, jnp.float32).at[new.bias_ids].set(new.bias, mode="drop")
    last = new.length - jnp.arange(MAX_BAD_WORD_IDS - 1, 0, -1)  # indices of the last ids
    recent = jnp.where(last >= new.prompt_length, new.ids[jnp.maximum(last, 0)], NOTHING)
    ring = state.history.shape[1]
    column = jnp.where(real & (index >= new.length - ring), index % ring, ring)
    history = jnp.zeros(ring, jnp.int32).at[column].set(new.ids, mode="drop")
    values = SamplerState(
        seen=seen,
        generated=generated,
        bias=bias,
        bans=new.bans,
        bad_words=new.bad_words,
        recent=recent,
        history=history,
        values=new.values,
        breakers=new.breakers,
        surprise=new.surprise,
        mask=state.mask[new.slot],
    )
    return SamplerState(*(of_slots.at[new.slot].set(value) for of_slots, value in zip(state, values, strict=True)))


def padded_words(words: Items[Items[int]], vocab: int) -> Any:
    """Bad words as the device has them, i32 [MAX_BAD_WORDS, MAX_BAD_WORD_IDS]: ANYTHING in front, `vocab` if unused."""
    padded: np.ndarray = np.full((MAX_BAD_WORDS, MAX_BAD_WORD_IDS), vocab, np.int32)
    for row, word in zip(padded, words, strict=False):
        row[: -len(word)], row[-len(word) :] = ANYTHING, word
    return padded


def _filter_values(params: SamplingParams) -> Any:
    """f32 [fields of FilterValues]"""
    samplers, reach = params.samplers, params.samplers.dynatemp_range
    temperatures = {
        "temperature_low": max(0.0, params.temperature - reach),
        "temperature_high": params.temperature + reach,
        "temperature_exponent": samplers.dynatemp_exponent,
    }
    values = [temperatures[name] if name in temperatures else getattr(samplers, name) for name in FilterValues._fields]
    return np.array(values, np.float32)


def _bits(ids: Items[int], vocab: int) -> Any:
    """i32 [⌈vocab/32⌉] with a 1 for each of `ids`."""
    named: np.ndarray = np.zeros(32 * mask.words(vocab), bool)
    named[list(ids)] = True
    return np.packbits(named, bitorder="little").view(np.int32)


def _scalar(value: float | None, dtype: type = np.int32) -> Any:
    return dtype(value)


def _padded(values: Items[float], size: int, fill: int, dtype: type = np.int32) -> Any:
    padded: np.ndarray = np.full(size, fill, dtype)
    padded[: len(values)] = values
    return padded
