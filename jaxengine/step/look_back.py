"""Samplers that look back at the text: DRY, penalties over the last ids only, and repeated n-grams.

Legend: N samples, V vocabulary, H ids that are looked back, D most guesses of a draft.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.rpc.limits import MAX_REPEAT
from jaxengine.step import buffer
from jaxengine.step.buffer import SampleFields
from jaxengine.step.sampler_state import NOTHING, FilterValues, SamplerState
from jaxengine.step.verification import recent_of

UNROLLED = 8  # ids compared in one turn of a loop, which asks after each whether to go on
NEWER = 1 << 16  # more than ids that are looked back: two counts stand in one array of the vocabulary
MAX_EXPONENT = 87.0  # exp() of more is beyond f32
MAX_PENALTY = 1e30


class LookBack(NamedTuple):
    """The text in front of each sample, and what its samplers ask."""

    ids: Array  # i32 [N, H], the newest last, NOTHING in front of the first
    values: FilterValues  # f32 [N] each
    breaks: Array  # bool [N, H], whether the id ends a repetition
    wanted: Array  # bool [N, 1], whether the sample looks back at all
    repeated: Array  # i32 [N, H], as `_repeated` counts

    @classmethod
    def of(cls, samples: SampleFields, state: SamplerState, guesses: Array | None) -> "LookBack":
        """
        Args:
            guesses: those in front of each sample, i32 [N, D], as `guessed_before` has them.
        """
        size = state.history.shape[1]
        position = (samples.position - samples.guesses_before)[:, None] + jnp.arange(-size, 0)  # [N, H]
        ids = jnp.take_along_axis(state.history[samples.slot], position % size, axis=1)
        ids = jnp.where(position >= 0, ids, NOTHING)
        if guesses is not None:
            ids = recent_of(ids, guesses, samples.guesses_before)
        words = jnp.take_along_axis(state.breakers[samples.slot], jnp.maximum(ids, 0) // 32, axis=1)
        breaks = ((words >> (ids % 32)) & 1 != 0) & (ids >= 0)
        wanted = wanted_by(samples)
        return cls(ids, FilterValues(*state.values[samples.slot].T), breaks, wanted, _repeated(ids, wanted))

    def dry(self, scores: Array, which: Array) -> Array:
        """f32 `scores` [N, V], in the rows `which` [N, 1] less what DRY takes (llama.cpp's)."""
        values, size = self.values, self.ids.shape[1]
        window = self._window(values.dry_range)
        breaks = self.breaks & window
        unbroken = jnp.where(breaks.any(axis=1), jnp.argmax(breaks[:, ::-1], axis=1), size)  # behind the last breaker
        inside = jnp.cumsum(window, axis=1) - 1  # ids of the window in front of each id
        length = jnp.minimum(self.repeated, jnp.minimum(inside, unbroken[:, None]))
        over = length - values.dry_allowed_length[:, None]
        exponent = jnp.minimum(over * jnp.log(values.dry_base)[:, None], MAX_EXPONENT)
        penalty = jnp.minimum(values.dry_multiplier[:, None] * jnp.exp(exponent), MAX_PENALTY)
        here = self._columns(which & window & ~self.breaks & (over >= 0), scores)
        return scores.at[here].min(scores.at[here].get(mode="clip") - penalty, mode="drop")

    def forbid_ngrams(self, scores: Array) -> Array:
        """`scores` [N, V] with -inf for ids that complete an n-gram of the text, unless nothing would be left."""
        size = self.values.no_repeat_ngram_size[:, None]
        completes = (size > 0) & (self.repeated >= size - 1)
        left = scores.at[self._columns(completes, scores)].min(-jnp.inf, mode="drop")
        return jnp.where((left > -jnp.inf).any(axis=-1, keepdims=True), left, scores)

    def counted(self, seen: Array) -> tuple[Array, Array]:
        """i32 `seen` [N, V], where the penalties have a range how often each id stands there; and bool [N, V], whether
        it stands in the range's newer half.
        """
        window = self._window(self.values.repetition_range)
        used = jnp.sum(window, axis=1, keepdims=True)
        newer = window & (used - self._age() >= used // 2)
        counted = jnp.where(self.ranged, 0, seen)
        both = counted.at[self._columns(window & self.ranged, seen)].add(1 + NEWER * newer, mode="drop")
        return jnp.where(self.ranged, both % NEWER, both), both >= NEWER

    @property
    def ranged(self) -> Array:
        """bool [N, 1]: whether the penalties have a range."""
        return self.wanted & (self.values.repetition_range > 0)[:, None]

    def _window(self, length: Array) -> Array:
        """bool [N, H]: the last `length` [N] ids, all where that is 0."""
        length = jnp.where(length > 0, length, self.ids.shape[1])[:, None]
        return (self._age() <= length) & (self.ids >= 0)

    def _age(self) -> Array:
        """[1, H]: 1 for the newest id."""
        return jnp.arange(self.ids.shape[1], 0, -1)[None]

    def _columns(self, which: Array, scores: Array) -> tuple[Array, Array]:
        """The places in `scores` [N, V] of the ids, of those `which` [N, H] says; beyond it of all others."""
        column = jnp.where(which & self.wanted & (self.ids >= 0), self.ids, scores.shape[1])
        return jnp.arange(self.ids.shape[0])[:, None], column


def wanted_by(samples: SampleFields) -> Array:
    """bool [N, 1]"""
    return (samples.flags & buffer.LOOKS_BACK)[:, None] != 0


def _repeated(ids: Array, wanted: Array) -> Array:
    """i32 [N, H]: how many in front of each of `ids` are the text's last ones, in their order; at most MAX_REPEAT."""
    rows, size = ids.shape
    front = jnp.full((rows, MAX_REPEAT), NOTHING, jnp.int32)
    padded = jnp.concatenate([front, ids], axis=1)
    last = jnp.flip(padded[:, -MAX_REPEAT:], axis=1)  # [N, MAX_REPEAT], the newest first

    def compare(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        done, alive, length = carry
        for number in range(UNROLLED):
            back = done + number
            earlier = jax.lax.dynamic_slice_in_dim(padded, MAX_REPEAT - 1 - back, size, axis=1)
            own = jax.lax.dynamic_slice_in_dim(last, back, 1, axis=1)
            alive = alive & (earlier == own) & (earlier >= 0)
            length = length + alive
        return done + UNROLLED, alive, length

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        return (carry[0] < MAX_REPEAT) & jnp.any(carry[1])

    alive = jnp.broadcast_to(wanted, (rows, size))  # a text that nobody looks back at prolongs no loop
    start = jnp.int32(0), alive, jnp.zeros((rows, size), jnp.int32)
    return jax.lax.while_loop(goes_on, compare, start)[2]
