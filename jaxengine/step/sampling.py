"""From logits to tokens, on the device: penalties, bias, temperature, filters, the choice, and logprobs.

No vocabulary is ever sorted, see `step/filters.py`, and sampling is counter-based, see `step/noise.py`.

Order of processors: mask, watermark, bias, DRY, repetition, frequency and presence (or DRY behind these), ban, n-grams,
temperature, and the filters in each sample's own order. Logprobs are those of the masked logits: a token that is forced
has 0. Those of a beam are normalised first and processed then, up to the n-grams.
Legend: N samples, V vocabulary, A alternatives reported.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.request.sampling_params import MAX_BIAS
from jaxengine.step import buffer, filters, noise
from jaxengine.step.buffer import SampleFields
from jaxengine.step.look_back import LookBack, wanted_by
from jaxengine.step.sampler_state import ANYTHING, NOTHING, SamplerState
from jaxengine.step.verification import counted, guessed_before, recent_of

WATERMARK = 15485863  # what Kirchenbauer et al. multiply the previous id by; here the other half of the key
BANNED_BESIDE_MASK = -3e4  # beyond any bias; logits beside it keep two decimals
BLOCK = 128  # ids whose maximum stands for them when the highest are looked for


class Memory(NamedTuple):
    """What the sampler remembers of the text in front of each sample."""

    seen: Array  # i32 [N, V]
    generated: Array  # i32 [N, V]
    recent: Array  # i32 [N, MAX_BAD_WORD_IDS - 1]


class Sampled(NamedTuple):
    id: Array  # i32 [N]
    logprob: Array  # f32 [N]
    finite: Array  # bool [N], whether the model's logits were
    surprise: Array  # f32 [N], mirostat's bound behind the token, in bits; means nothing for other samples
    top_id: Array  # i32 [N, A]
    top_logprob: Array  # f32 [N, A]


def greedy(logits: Array, top: int) -> Sampled:
    """argmax of f32 `logits` [N, V] with its logprob; no alternatives."""
    ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    rows = ids.shape[0]
    return Sampled(
        ids,
        _logprob(logits, ids),
        _finite(logits),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros((rows, top), jnp.int32),
        jnp.zeros((rows, top), jnp.float32),
    )


def sample(
    logits: Array, samples: SampleFields, state: SamplerState, top: int, guesses: int = 0
) -> tuple[Sampled, SamplerState]:
    """Sample a token from each row of f32 `logits` [N, V], as its fields say, and count it in its slot.

    Args:
        guesses: that a row may have; 0 where no step verifies any.
    """
    masked = _normalise(_mask(logits, samples, state), samples)
    memory = _memory(samples, state, guesses)
    scores = _look_back(_bias(_watermark(masked, samples), samples, state), samples, state, memory, guesses)
    warm = samples.temperature > 0
    filtered = filters.narrow(_warm(scores, samples.temperature[:, None]), samples, state)
    scores = filtered.scores
    noisy = jax.lax.cond(jnp.any(warm), lambda: scores + noise.gumbel(samples, scores.shape[1]), lambda: scores)
    ids = jnp.argmax(jnp.where(warm[:, None], noisy, scores), axis=-1).astype(jnp.int32)
    reported = jnp.where(_flag(samples, buffer.PROCESSED), scores, masked)
    total = jnp.where(_flag(samples, buffer.SUMMED), 0, jax.nn.logsumexp(reported, axis=-1, keepdims=True))
    top_score, top_id = _highest(reported, top)
    logprob = jnp.take_along_axis(reported, ids[:, None], axis=-1) - total
    surprise = filters.next_surprise(filtered, ids, samples, state)
    sampled = Sampled(ids, logprob[:, 0], _finite(logits), surprise, top_id, top_score - total)
    return sampled, _remember(sampled, samples, state, memory, guesses)


def _memory(samples: SampleFields, state: SamplerState, guesses: int) -> Memory:
    """That of each sample's slot, and the guesses in front of it."""
    seen, generated, recent = (of_slots[samples.slot] for of_slots in (state.seen, state.generated, state.recent))
    if not guesses:
        return Memory(seen, generated, recent)
    before = guessed_before(samples, guesses, seen.shape[1])

    def with_guesses() -> tuple[Array, Array]:
        here = jnp.arange(seen.shape[0])[:, None], before
        return seen.at[here].add(1, mode="drop"), generated.at[here].add(1, mode="drop")

    seen, generated = jax.lax.cond(jnp.any(samples.guesses_before > 0), with_guesses, lambda: (seen, generated))
    return Memory(seen, generated, recent_of(recent, before, samples.guesses_before))


def _remember(
    sampled: Sampled, samples: SampleFields, state: SamplerState, memory: Memory, guesses: int
) -> SamplerState:
    """`state` once ids are sampled, each for its slot, which the sink is for those that do not count.

    Only the last that counts of a slot's samples writes what came last.
    """
    ids, counts, last = sampled.id, samples.slot, samples.slot
    if guesses:
        sink = state.seen.shape[0] - 1
        counts, last = (jnp.where(which, samples.slot, sink) for which in counted(ids, samples))
    later = jnp.concatenate([memory.recent[:, 1:], ids[:, None]], axis=1)
    return state._replace(
        seen=state.seen.at[counts, ids].add(1),
        generated=state.generated.at[counts, ids].add(1),
        recent=state.recent.at[last].set(later),
        history=state.history.at[counts, samples.position % state.history.shape[1]].set(ids),
        surprise=state.surprise.at[last].set(sampled.surprise),
    )


def top_logprobs(logits: Array, top: int) -> tuple[Array, Array]:
    """The `top` likeliest ids of each row and their logprobs, i32 and f32 [N, top]."""
    value, ids = _highest(logits, top)
    return ids, value - jax.nn.logsumexp(logits, axis=-1, keepdims=True)


def _highest(values: Array, top: int) -> tuple[Array, Array]:
    """`jax.lax.top_k` of f32 [N, V], values and i32 ids [N, top], without sorting V as a GPU does for `top` above 16.

    The highest lie in the `top` blocks with the highest maxima; among equals the first count, of blocks as of ids.
    """
    rows, vocab = values.shape
    count = -(-vocab // BLOCK)
    if count <= top:
        value, ids = jax.lax.top_k(values, top)
        return value, ids.astype(jnp.int32)
    padded = jnp.pad(values, ((0, 0), (0, count * BLOCK - vocab)), constant_values=-jnp.inf)
    blocks = padded.reshape(rows, count, BLOCK)
    chosen = jnp.sort(jax.lax.top_k(blocks.max(axis=-1), top)[1], axis=-1)  # [N, top]
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, -1)
    value, found = jax.lax.top_k(candidates, top)
    ids = jnp.take_along_axis(chosen, found // BLOCK, axis=1) * BLOCK + found % BLOCK
    return value, ids.astype(jnp.int32)


def _flag(samples: SampleFields, bit: int) -> Array:
    """bool [N, 1]"""
    return (samples.flags & bit)[:, None] != 0


def _logprob(logits: Array, ids: Array) -> Array:
    return jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)


def _finite(logits: Array) -> Array:
    return jnp.isfinite(logits).all(axis=-1)


def green_list(previous: Array, gamma: Array, vocab: int) -> Array:
    """bool [vocab]: the share `gamma` of ids that a watermark favours after `previous`; known to who detects it."""
    key = jax.random.wrap_key_data(jnp.stack([jnp.uint32(WATERMARK), previous.astype(jnp.uint32)]), impl="threefry2x32")
    return jax.random.uniform(key, (vocab,)) < gamma


def _watermark(logits: Array, samples: SampleFields) -> Array:
    """The soft watermark of Kirchenbauer et al. 2023 (arXiv 2301.10226), one id of context."""

    def favoured() -> Array:
        green = jax.vmap(green_list, (0, 0, None))(samples.previous, samples.watermark_gamma, logits.shape[1])
        return logits + green * samples.watermark_delta[:, None]

    return jax.lax.cond(jnp.any(samples.watermark_gamma > 0), favoured, lambda: logits)


def _mask(logits: Array, samples: SampleFields, state: SamplerState) -> Array:
    """-inf for ids that the sample's grammar does not allow."""
    words = jnp.where(_flag(samples, buffer.MASKED), state.mask[samples.mask], -1)  # [N, ⌈V/32⌉]
    bits = (words[:, :, None] >> jnp.arange(32)) & 1
    allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[1]] != 0
    return jnp.where(allowed, logits, -jnp.inf)


def _normalise(logits: Array, samples: SampleFields) -> Array:
    """Log-probabilities in place of the `logits` of beams: a beam search adds up what processors make of these, and
    does not normalise that again.
    """
    summed = _flag(samples, buffer.SUMMED)
    total = jax.lax.cond(
        jnp.any(summed),
        lambda: jnp.where(summed, jax.nn.logsumexp(logits, axis=-1, keepdims=True), 0),
        lambda: jnp.zeros((logits.shape[0], 1)),
    )
    return logits - total


def _excluded(samples: SampleFields) -> Array:
    """f32 [N, 1]: what a ban adds to a score. Beside a mask it is finite: where a grammar allows nothing but what is
    banned, the grammar comes first.
    """
    return jnp.where(_flag(samples, buffer.MASKED), BANNED_BESIDE_MASK, -jnp.inf)


def _bias(logits: Array, samples: SampleFields, state: SamplerState) -> Array:
    bias = state.bias[samples.slot]  # -inf where only biased ids are allowed
    bias = jnp.where(bias <= -MAX_BIAS, _excluded(samples), bias)
    return logits + jnp.where(_flag(samples, buffer.BIASED), bias, 0)


def _look_back(logits: Array, samples: SampleFields, state: SamplerState, memory: Memory, guesses: int) -> Array:
    """Everything that depends on the text in front of each sample."""

    def as_counted() -> Array:
        return _ban(_penalise(logits, samples, memory, samples.repetition_penalty[:, None]), samples, state, memory)

    def looking_back() -> Array:
        before = guessed_before(samples, guesses, NOTHING) if guesses else None
        return _penalise_by_text(logits, samples, state, memory, LookBack.of(samples, state, before))

    return jax.lax.cond(jnp.any(wanted_by(samples)), looking_back, as_counted)


def _penalise_by_text(
    logits: Array, samples: SampleFields, state: SamplerState, memory: Memory, text: LookBack
) -> Array:
    """Penalties and bans, of the samples that look back by their `text`."""
    repetition = samples.repetition_penalty[:, None]
    seen, newer = text.counted(memory.seen)
    generated = jnp.where(text.ranged, seen, memory.generated)
    less = text.ranged & ~newer & (repetition > 1)
    sloped = jnp.where(less, 1 + (repetition - 1) * text.values.repetition_slope[:, None], repetition)
    penalties_first = text.values.penalties_first[:, None] != 0
    scores = text.dry(logits, ~penalties_first)
    scores = _penalise(scores, samples, Memory(seen, generated, memory.recent), sloped)
    scores = text.dry(scores, penalties_first)
    return text.forbid_ngrams(_ban(scores, samples, state, memory))


def _penalise(logits: Array, samples: SampleFields, memory: Memory, repetition: Array) -> Array:
    """Penalties: repetition (Keskar et al. 2019, arXiv 1909.05858), of f32 [N, 1] or [N, V], frequency and presence."""
    active = _flag(samples, buffer.PENALISED)
    seen, generated = memory.seen, memory.generated
    repetition = jnp.where(active & (seen > 0), repetition, 1)
    scores = jnp.where(logits < 0, logits * repetition, logits / repetition)
    share = seen / jnp.maximum(samples.position, 1)[:, None]
    frequency = jnp.where(_flag(samples, buffer.OVER_LENGTH), share, generated) * samples.frequency_penalty[:, None]
    presence = (generated > 0) * samples.presence_penalty[:, None]
    return scores - jnp.where(active, frequency + presence, 0)


def _ban(scores: Array, samples: SampleFields, state: SamplerState, memory: Memory) -> Array:
    """No EOS and no stop id before `min_tokens`, and no id that would complete a bad word."""
    vocab, words = scores.shape[1], state.bad_words[samples.slot]  # [N, MAX_BAD_WORDS, MAX_BAD_WORD_IDS]
    begun = (words[..., :-1] == ANYTHING) | (words[..., :-1] == memory.recent[:, None])
    ends = jnp.where(begun.all(axis=-1) & _flag(samples, buffer.BAD_WORDS), words[..., -1], vocab)  # [N, MAX_BAD_WORDS]
    bans = jnp.where(_flag(samples, buffer.BANNED), state.bans[samples.slot], vocab)  # [N, BANS]
    banned = jnp.concatenate([bans, ends], axis=1)
    return scores.at[jnp.arange(scores.shape[0])[:, None], banned].add(_excluded(samples), mode="drop")


def _warm(scores: Array, temperature: Array) -> Array:
    """`scores` over `temperature`. Greedy ones are as they were."""
    return jnp.where(temperature > 0, filters.cooled(scores, temperature), scores)
