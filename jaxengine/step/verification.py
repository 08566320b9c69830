"""Samples of a row with a draft: which of them count, and what came before each of them.

Sample j of a row is drawn as if the first j guesses of its draft were right: with their history, and with the noise of
its own position. The samples count as long as each equals its guess, and so does the first that does not. So the tokens
that count are those of steps without drafts, whatever was guessed, and no probability of a guess is needed.

The samples of one row stand next to each other. Legend: N samples, D most guesses of a draft.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.step.buffer import SampleFields


class Counted(NamedTuple):
    """bool [N] each."""

    counts: Array  # the sample is in the answer
    last: Array  # it is the last of its row that is


def counted(ids: Array, samples: SampleFields) -> Counted:
    """Which of the sampled `ids`, i32 [N], count."""
    number = jnp.arange(ids.shape[0])
    right = ids == samples.guess
    wrong_before = jnp.roll(jax.lax.cummax(jnp.where(right, -1, number)), 1).at[0].set(-1)  # the last one
    counts = wrong_before < number - samples.guesses_before
    return Counted(counts, counts & ~right)


def guessed_before(samples: SampleFields, most: int, fill: int) -> Array:
    """i32 [N, D]: the guesses in front of each sample, the nearest first; `fill` where there are no more."""
    back = 1 + jnp.arange(most)
    guess = samples.guess[jnp.arange(samples.guess.shape[0])[:, None] - back]
    return jnp.where(back <= samples.guesses_before[:, None], guess, fill)


def recent_of(recent: Array, before: Array, guesses_before: Array) -> Array:
    """The ids in front of each sample, the nearest last, i32 [N, M]: those of its slot, `recent` [N, M], and behind
    them its guesses `before` [N, D].
    """
    size = recent.shape[1]
    back = jnp.arange(size, 0, -1)[None]  # how far in front of the sample, of each column
    older = jnp.take_along_axis(recent, jnp.clip(size - back + guesses_before[:, None], 0, size - 1), axis=1)
    guess = jnp.take_along_axis(before, jnp.minimum(back, before.shape[1]) - 1, axis=1)
    return jnp.where(back <= guesses_before[:, None], guess, older)
