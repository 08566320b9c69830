"""Samplers that look back, against loops over the text."""

import jax
import numpy as np
import pytest

from jaxengine.request.samplers import Samplers
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.step.sampler_slot import SamplerSlot, fill_slot
from jaxengine.step.sampler_state import SamplerState
from tests.jaxengine.sampler import history, in_order_of_ids, processed, sample, sample_with

VOCAB = 12


def adjusted(text: list[int], samplers: Samplers, **others: float) -> np.ndarray:
    """What a greedy sampler makes of flat logits of 5 behind `text`: differences are penalties. f32 [V]"""
    params = SamplingParams(seed=1, temperature=0, processed_logprobs=True, samplers=samplers, **others)  # type: ignore[arg-type]
    logits = np.full((1, VOCAB), 5, np.float32)
    logprobs = processed(logits, [history(params, text[:2], text[2:])])[0]
    return logprobs - logprobs[11]  # which no text has


def dry(text: list[int], samplers: Samplers) -> np.ndarray:
    """By the rule's own words. f32 [V]"""
    text = text[-samplers.dry_range :]
    breakers = samplers.dry_breakers
    penalty = np.zeros(VOCAB, np.float32)
    for at in range(1, len(text)):
        length = 0
        while length < at and text[at - 1 - length] == text[-1 - length] and text[-1 - length] not in breakers:
            length += 1
        if length >= samplers.dry_allowed_length and text[at] not in breakers:
            wanted = samplers.dry_multiplier * samplers.dry_base ** (length - samplers.dry_allowed_length)
            penalty[text[at]] = max(penalty[text[at]], wanted)
    return -penalty


@pytest.mark.parametrize("seed", range(30))
def test_dry_is_the_loop_over_all_repetitions(seed: int) -> None:
    chance = np.random.default_rng(seed)
    text = chance.integers(0, 3, chance.integers(3, 60)).tolist()
    samplers = Samplers(
        dry_multiplier=float(chance.uniform(0.1, 2)),
        dry_base=float(chance.uniform(1, 1.5)),
        dry_allowed_length=int(chance.integers(1, 4)),
        dry_range=int(chance.choice([0, 5, 20])),
        dry_breakers=tuple(chance.choice(3, chance.integers(0, 2), replace=False).tolist()),
    )
    np.testing.assert_allclose(adjusted(text, samplers), dry(text, samplers), rtol=1e-4, atol=1e-4)


def test_a_repetition_as_long_as_the_text_is_still_finite() -> None:
    scores = adjusted([1] * 60, Samplers(dry_multiplier=100.0, dry_base=100.0))
    assert np.isfinite(scores).all()
    assert scores[1] <= -1e30


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_no_ngram_is_repeated(size: int, seed: int) -> None:
    text = np.random.default_rng(seed).integers(0, 4, 40).tolist()
    grams = {tuple(text[at : at + size]) for at in range(len(text) - size + 1)}
    banned = [id for id in range(VOCAB) if (*text[len(text) - size + 1 :], id) in grams]
    scores = adjusted(text, Samplers(no_repeat_ngram_size=size))
    assert np.flatnonzero(np.isneginf(scores)).tolist() == banned


def test_a_ban_that_would_leave_nothing_does_not_apply() -> None:
    params = SamplingParams(seed=1, temperature=0, samplers=Samplers(no_repeat_ngram_size=1))
    logits = np.arange(4, dtype=np.float32)[None]
    assert sample(logits, [history(params, [0, 1], [2])]).id[0] == 3
    assert sample(logits, [history(params, [0, 1], [2, 3])]).id[0] == 3


def test_penalties_with_a_range_count_the_last_ids_of_prompt_and_answer() -> None:
    text = [0, 1, 2, 3, 4, 4]  # of which 2, 3, 4 and 4 count
    scores = adjusted(text, Samplers(repetition_range=4), frequency_penalty=0.5, presence_penalty=0.25)
    np.testing.assert_allclose(scores[:6], [0, 0, -0.75, -0.75, -1.25, 0], atol=1e-5)


def test_a_penalty_by_share_counts_the_range_too() -> None:
    """TGI's frequency penalty: the count over the length of the text, here 6."""
    scores = adjusted(
        [0, 1, 2, 3, 4, 4], Samplers(repetition_range=4), frequency_penalty=1.5, frequency_over_length=True
    )
    np.testing.assert_allclose(scores[:6], [0, 0, -0.25, -0.25, -0.5, 0], atol=1e-5)


def test_only_the_older_half_is_sloped() -> None:
    """Of 5 ids the newer half is 3, as in KoboldCpp; an id in both halves is of the newer."""
    text = [9, 1, 0, 2, 0, 3]
    scores = adjusted(text, Samplers(repetition_range=5, repetition_slope=0.5), repetition_penalty=2.0)
    np.testing.assert_allclose(scores[[9, 0, 1, 2, 3]], [0, 5 / 2 - 5, 5 / 1.5 - 5, 5 / 2 - 5, 5 / 2 - 5], atol=1e-5)


def test_a_range_changes_nothing_where_nothing_is_penalised() -> None:
    params = SamplingParams(seed=1, samplers=Samplers(repetition_range=4))
    assert not params.looks_back


def of_a_long_text(text: list[int], samplers: Samplers, ring: int) -> np.ndarray:
    """`adjusted`, where so many ids are remembered."""
    params = SamplingParams(seed=1, temperature=0, processed_logprobs=True, samplers=samplers)
    sequence = history(params, text)
    sequence.slot = 0
    slot = SamplerSlot.of(sequence, (), len(text), VOCAB)
    state = jax.jit(fill_slot)(SamplerState.empty(1, VOCAB, longest=ring), slot)
    sampled, _ = sample_with(np.full((1, VOCAB), 5, np.float32), [sequence], state)
    logprobs = in_order_of_ids(sampled)[0]
    return logprobs - logprobs[11]


@pytest.mark.parametrize("length", [7, 8, 9, 21, 24])
def test_of_a_longer_text_the_last_ids_are_looked_at(length: int) -> None:
    text = np.random.default_rng(length).integers(0, 3, length).tolist()
    samplers = Samplers(dry_multiplier=1.0, dry_allowed_length=1, dry_base=1.5)
    np.testing.assert_allclose(of_a_long_text(text, samplers, ring=8), dry(text[-8:], samplers), atol=1e-5)


def test_a_repetition_counts_as_128_ids_at_most() -> None:
    text = [*range(10)] * 30
    scores = of_a_long_text(text, Samplers(dry_multiplier=1.0, dry_allowed_length=1, dry_base=1.01), ring=300)
    np.testing.assert_allclose(scores[0], -(1.01**127), rtol=1e-4)
    assert not scores[1:].any()
