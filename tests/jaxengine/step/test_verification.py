"""Verifying a draft in one step is sampling token by token: against plain loops, and against the laws of chance."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from jaxengine.request.samplers import Samplers
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Sequence
from jaxengine.step.buffer import NO_GUESS, SampleFields, unpack_samples
from jaxengine.step.sampler_state import NOTHING, SamplerState
from jaxengine.step.verification import counted, guessed_before, recent_of
from tests.jaxengine.sampler import history, pack, sampler_state_of, verify
from tests.jaxengine.step.test_sampling import CRITICAL, chi_square, log_softmax

VOCAB, MOST, FILL = 8, 5, 99


def random_drafts(chance: np.random.Generator, rows: int) -> list[list[int]]:
    return [chance.integers(0, 3, chance.integers(0, MOST + 1)).tolist() for _ in range(rows)]


def step_of(drafts: list[list[int]], padding: int = 0) -> SampleFields:
    sequences = [history(SamplingParams(seed=row)) for row in range(len(drafts))]
    return unpack_samples(jax.numpy.asarray(pack(sequences, drafts, padding)))


def by_row(drafts: list[list[int]]) -> Iterator[tuple[int, list[int]]]:
    """The index of each row's first sample, and its draft."""
    first = 0
    for draft in drafts:
        yield first, draft
        first += len(draft) + 1


@pytest.mark.parametrize("seed", range(20))
def test_what_counts_is_what_a_loop_over_each_draft_counts(seed: int) -> None:
    chance = np.random.default_rng(seed)
    drafts, padding = random_drafts(chance, rows=6), int(chance.integers(0, 5))
    samples = step_of(drafts, padding)
    ids = chance.integers(0, 3, samples.slot.shape[0])
    counts, last = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
    for first, draft in by_row(drafts):
        i = 0
        while i < len(draft) and ids[first + i] == draft[i]:
            i += 1
        counts[first : first + i + 1] = last[first + i] = True
    ours = counted(jax.numpy.asarray(ids, np.int32), samples)
    real = slice(0, len(ids) - padding)
    np.testing.assert_array_equal(ours.counts[real], counts[real])
    np.testing.assert_array_equal(ours.last[real], last[real])


@pytest.mark.parametrize("seed", range(5))
def test_what_stands_in_front_of_a_sample_is_its_text_and_the_guesses_before_it(seed: int) -> None:
    chance = np.random.default_rng(seed)
    drafts = random_drafts(chance, rows=6)
    samples = step_of(drafts, padding=3)
    recent = chance.integers(10, 20, (6, 4))
    before = guessed_before(samples, MOST, FILL)
    ours = recent_of(jax.numpy.asarray(recent)[np.minimum(samples.slot, 5)], before, samples.guesses_before)
    for row, (first, draft) in enumerate(by_row(drafts)):
        for i in range(len(draft) + 1):
            assert before[first + i].tolist() == draft[:i][::-1] + [FILL] * (MOST - i)
            assert ours[first + i].tolist() == [*recent[row], *draft[:i]][-4:]


def test_a_sample_of_padding_or_without_a_draft_has_no_guess() -> None:
    samples = step_of([[], [1, 2], []], padding=0)
    assert samples.guess.tolist() == [NO_GUESS, 1, 2, NO_GUESS, NO_GUESS]
    assert samples.guesses_before.tolist() == [0, 0, 1, 2, 0]
    assert samples.position.tolist() == [1, 1, 2, 3, 1]


# --- the sampler's memory -----------------------------------------------------------------------------------------

WAYS = [
    {"repetition_penalty": 1.7, "temperature": 1.0},
    {"frequency_penalty": 1.5, "presence_penalty": 0.9},
    {"frequency_penalty": 2.0, "frequency_over_length": True, "temperature": 0.7},
    {"bad_words": ((1, 2), (2, 2, 0), (0, 1, 1), (3,)), "temperature": 1.0},
    {"logit_bias": {5: 2.0}, "min_tokens": 3, "stop_token_ids": (0, 1), "temperature": 1.0},
    {"temperature": 1.0, "presence_penalty": -3.0},
    {"temperature": 1.0, "samplers": Samplers(dry_multiplier=2.0, dry_allowed_length=1, dry_breakers=(3,))},
    {"samplers": Samplers(no_repeat_ngram_size=2), "temperature": 1.0},
    {
        "repetition_penalty": 1.7,
        "presence_penalty": 0.5,
        "samplers": Samplers(repetition_range=3, repetition_slope=0.3, xtc_threshold=0.2, xtc_probability=0.5),
    },
]


def one_by_one(logits: np.ndarray, rows: list[Sequence], steps: int) -> tuple[list[list[int]], list[SamplerState]]:
    """`logits` [steps, R, V]: the ids of each row, and the memory after each step."""
    state, ids = sampler_state_of(rows, VOCAB), [[] for _ in rows]
    states = [state]
    for of_step in logits[:steps]:
        sampled, state = verify(of_step, rows, [[] for _ in rows], state)
        states.append(state)
        for row, of_row, token in zip(rows, ids, sampled.tolist(), strict=True):
            row.tokens.append(token)
            row.length += 1
            of_row.append(token)
    return ids, states


@pytest.mark.parametrize("seed", range(6))
def test_a_step_that_verifies_samples_and_remembers_what_single_steps_do(seed: int) -> None:
    chance = np.random.default_rng(seed)
    logits = chance.normal(0, 2, (MOST + 1, len(WAYS), VOCAB)).astype(np.float32)

    def rows() -> list[Sequence]:
        return [history(SamplingParams(seed=9 + row, **way), [1, 2], [2, 0]) for row, way in enumerate(WAYS)]  # type: ignore[arg-type]

    ids, states = one_by_one(logits, rows(), MOST + 1)
    turns = chance.integers(0, MOST + 1, len(WAYS))  # how many guesses are right
    drafts = []
    for of_row, turn in zip(ids, turns, strict=True):
        wrong = [] if turn == MOST else [(of_row[turn] + 1) % VOCAB, *chance.integers(0, VOCAB, MOST - turn - 1)]
        drafts.append([*of_row[:turn], *map(int, wrong)])
    verified = rows()
    sampled, state = verify(
        logits.swapaxes(0, 1).reshape(-1, VOCAB), verified, drafts, sampler_state_of(verified, VOCAB)
    )
    for row, (first, _) in enumerate(by_row(drafts)):
        count = turns[row] + 1
        assert sampled[first : first + count].tolist() == ids[row][:count]
        for name in ("seen", "generated", "recent", "bias", "bans", "bad_words", "history", "values", "breakers"):
            mine, theirs = (np.asarray(getattr(each, name))[row] for each in (state, states[count]))
            np.testing.assert_array_equal(mine, theirs, err_msg=f"{name} of row {row}")


def test_padding_leaves_no_trace() -> None:
    rows = [history(SamplingParams(seed=1, presence_penalty=1.0), [1], [])]
    logits = np.zeros((8, VOCAB), np.float32)
    _, state = verify(logits, rows, [[7]], sampler_state_of(rows, VOCAB), padding=6)
    assert int(state.generated[0].sum()) in (1, 2)
    assert int((state.recent[0] != NOTHING).sum()) == int(state.generated[0].sum())


# --- the laws of chance -------------------------------------------------------------------------------------------

SEEDS = 4000


@pytest.mark.parametrize("guess", ["likeliest", "unlikely"])
def test_tokens_are_distributed_as_without_drafts(guess: str) -> None:
    """Both those of a guess, accepted or corrected, and those behind an accepted one."""
    logits = np.random.default_rng(3).normal(0, 1, (2, VOCAB)).astype(np.float32)
    order = np.argsort(logits[0])
    token = int(order[-1] if guess == "likeliest" else order[1])
    rows = [history(SamplingParams(seed=seed, temperature=1.0)) for seed in range(SEEDS)]
    sampled, _ = verify(np.tile(logits, (SEEDS, 1)), rows, [[token]] * SEEDS, sampler_state_of(rows, VOCAB))
    first, second = sampled.reshape(SEEDS, 2).T
    accepted = first == token
    for ids, scores in ((first, logits[0]), (second[accepted], logits[1])):
        assert chi_square(ids, np.exp(log_softmax(scores))) < CRITICAL
    assert accepted.mean() == pytest.approx(np.exp(logits[0, token]) / np.exp(logits[0]).sum(), abs=0.03)
