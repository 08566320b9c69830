"""Sampling against independent references: transformers' processors, NumPy, and the laws of chance.

Every test draws several rows at once, each with logits of its own. The order of processors is the sampler's: bias,
repetition, frequency and presence, ban, temperature, top-k, top-p, typical, min-p.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.generation import logits_process as oracle

from jaxengine.grammar.mask import allow, words
from jaxengine.grammar.matcher import Matcher
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Sequence
from jaxengine.step import sampling
from jaxengine.step.sampler_state import NOTHING
from tests.jaxengine.sampler import history, in_order_of_ids, processed, sample, sampler_state_of, state_after_sampling

ROWS, VOCAB = 8, 320
PROMPT = [1, 7, 7, 9, 30, 31, 7]
GENERATED = [9, 9, 40, 7, 41]

Oracle = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture
def logits() -> np.ndarray:
    """As spread as a language model's, f32 [ROWS, VOCAB]."""
    return np.random.default_rng(0).normal(0, 3, (ROWS, VOCAB)).astype(np.float32)


def params(**chosen: object) -> SamplingParams:
    return SamplingParams(**{"seed": 5, "processed_logprobs": True, **chosen})  # type: ignore[arg-type]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    return torch.from_numpy(scores).log_softmax(-1).numpy()


def reference(logits: np.ndarray, processors: Iterable[Oracle]) -> np.ndarray:
    """The log-probabilities transformers would draw from, after PROMPT and GENERATED."""
    scores, ids = torch.from_numpy(logits), torch.tensor([PROMPT + GENERATED] * len(logits))
    for process in processors:
        scores = process(ids, scores)
    return scores.log_softmax(-1).numpy()


def assert_same_distribution(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


FILTERS = [
    ({"temperature": 0.3}, [oracle.TemperatureLogitsWarper(0.3)]),
    ({"temperature": 2.5}, [oracle.TemperatureLogitsWarper(2.5)]),
    *(({"top_k": k}, [oracle.TopKLogitsWarper(k)]) for k in (1, 5, 319, 320, 100_000)),
    *(({"top_p": p}, [oracle.TopPLogitsWarper(p)]) for p in (0.01, 0.5, 0.9, 0.999)),
    *(({"typical_p": p}, [oracle.TypicalLogitsWarper(p)]) for p in (0.05, 0.5, 0.95)),
    *(({"min_p": p}, [oracle.MinPLogitsWarper(p)]) for p in (0.001, 0.3, 1.0)),
    *(({"repetition_penalty": p}, [oracle.RepetitionPenaltyLogitsProcessor(p)]) for p in (0.7, 1.3)),
    (
        {"repetition_penalty": 1.2, "temperature": 1.7, "top_k": 60, "top_p": 0.95, "typical_p": 0.9, "min_p": 0.02},
        [
            oracle.RepetitionPenaltyLogitsProcessor(1.2),
            oracle.TemperatureLogitsWarper(1.7),
            oracle.TopKLogitsWarper(60),
            oracle.TopPLogitsWarper(0.95),
            oracle.TypicalLogitsWarper(0.9),
            oracle.MinPLogitsWarper(0.02),
        ],
    ),
]


@pytest.mark.parametrize("chosen, processors", FILTERS, ids=[str(chosen) for chosen, _ in FILTERS])
def test_the_distribution_drawn_from_is_transformers_s(
    logits: np.ndarray, chosen: dict[str, float], processors: list[Oracle]
) -> None:
    rows = [history(params(**chosen), PROMPT, GENERATED) for _ in range(ROWS)]
    assert_same_distribution(processed(logits, rows), reference(logits, processors))


def test_rows_with_different_filters_do_not_touch_each_other(logits: np.ndarray) -> None:
    mixed = [history(params(**chosen), PROMPT, GENERATED) for chosen, _ in FILTERS[-ROWS:]]
    ours = processed(logits, mixed)
    for row, (_, processors) in enumerate(FILTERS[-ROWS:]):
        assert_same_distribution(ours[row : row + 1], reference(logits[row : row + 1], processors))


# --- penalties and bias -------------------------------------------------------------------------------------------


def counts(ids: list[int]) -> np.ndarray:
    return np.bincount(ids, minlength=VOCAB).astype(np.float32)


def test_openai_s_penalties_count_generated_ids_only(logits: np.ndarray) -> None:
    rows = [history(params(frequency_penalty=0.7, presence_penalty=-0.4), PROMPT, GENERATED) for _ in range(ROWS)]
    expected = logits - 0.7 * counts(GENERATED) + 0.4 * (counts(GENERATED) > 0)
    assert_same_distribution(processed(logits, rows), log_softmax(expected.astype(np.float32)))


def test_tgi_s_frequency_penalty_is_the_share_of_all_ids(logits: np.ndarray) -> None:
    rows = [history(params(frequency_penalty=2.0, frequency_over_length=True), PROMPT, GENERATED) for _ in range(ROWS)]
    share = counts(PROMPT + GENERATED) / len(PROMPT + GENERATED)
    assert_same_distribution(processed(logits, rows), log_softmax((logits - 2.0 * share).astype(np.float32)))


def test_a_drawn_id_is_counted_for_the_next_draw(logits: np.ndarray) -> None:
    """The slot is updated on the device; after it, it equals a slot filled with that id in the history."""
    rows = [history(params(temperature=0, presence_penalty=1.0), PROMPT, GENERATED) for _ in range(ROWS)]
    first = sample(logits, rows)
    again = [history(row.params, PROMPT, [*GENERATED, int(token)]) for row, token in zip(rows, first.id, strict=True)]
    for ours, expected in zip(state_after_sampling(logits, rows), sampler_state_of(again, VOCAB), strict=True):
        np.testing.assert_array_equal(np.asarray(ours)[:ROWS], np.asarray(expected)[:ROWS])


def test_logit_bias_is_added_to_the_named_ids(logits: np.ndarray) -> None:
    bias = {0: -100.0, 17: 3.5, 319: 8.0}
    expected = logits.copy()
    for token, value in bias.items():
        expected[:, token] += value
    rows = [history(params(logit_bias=bias)) for _ in range(ROWS)]
    assert_same_distribution(processed(logits, rows), log_softmax(expected))


def test_only_biased_leaves_the_ids_that_have_a_bias(logits: np.ndarray) -> None:
    rows = [history(params(logit_bias={3: 0.0, 17: -2.0}, only_biased=True)) for _ in range(ROWS)]
    expected = np.full_like(logits, -np.inf)
    expected[:, 3], expected[:, 17] = logits[:, 3], logits[:, 17] - 2
    assert_same_distribution(processed(logits, rows), log_softmax(expected))


def test_before_min_tokens_neither_eos_nor_a_stop_id_can_be_drawn(logits: np.ndarray) -> None:
    young = [history(params(min_tokens=3, stop_token_ids=(40, 41)), PROMPT, [9, 9]) for _ in range(ROWS)]
    grown = [history(params(min_tokens=3, stop_token_ids=(40, 41)), PROMPT, [9, 9, 9]) for _ in range(ROWS)]
    expected = logits.copy()
    expected[:, [2, 3, 40, 41]] = -np.inf
    assert_same_distribution(processed(logits, young, eos=(2, 3)), log_softmax(expected))
    assert_same_distribution(processed(logits, grown, eos=(2, 3)), log_softmax(logits))


def test_an_id_that_would_complete_a_bad_word_cannot_be_drawn(logits: np.ndarray) -> None:
    words = ((40,), (9, 41), (8, 9, 42), (7, 9, 43), (1, 44), (5, 6, 7, 8, 9, 8, 9, 45))
    generated = [5, 6, 7, 8, 9, 8, 9]
    rows = [history(params(bad_words=words), (1,), generated) for _ in range(ROWS)]
    expected = logits.copy()
    expected[:, [40, 41, 42, 45]] = -np.inf  # not 43: another id came before the 9; nor 44: the 1 is the prompt's
    assert_same_distribution(processed(logits, rows), log_softmax(expected))


def test_the_id_just_drawn_is_the_next_one_s_past(logits: np.ndarray) -> None:
    rows = [history(params(bad_words=((1,),)), (1,), [5, 6]) for _ in range(ROWS)]
    recent = np.asarray(state_after_sampling(logits, rows).recent)[:ROWS]
    np.testing.assert_array_equal(recent[:, -1], sample(logits, rows).id)
    assert (recent[:, -3:-1] == [5, 6]).all() and (recent[:, :-3] == NOTHING).all()


# --- the draw -----------------------------------------------------------------------------------------------------


def test_greedy_takes_the_likeliest_id(logits: np.ndarray) -> None:
    rows = [history(params(temperature=0, top_p=0.1 * (row + 1), processed_logprobs=False)) for row in range(ROWS)]
    ids = sample(logits, rows).id
    np.testing.assert_array_equal(ids, logits.argmax(-1))
    np.testing.assert_array_equal(ids, sampling.greedy(logits, 1).id)


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1.2e-38, 1e-42, 1e-300])
def test_ever_lower_temperatures_approach_greedy(logits: np.ndarray, temperature: float) -> None:
    rows = [history(params(temperature=temperature, top_p=0.9, top_k=50)) for _ in range(ROWS)]
    sampled = sample(logits, rows)
    np.testing.assert_array_equal(sampled.id, logits.argmax(-1))
    assert np.isfinite(sampled.logprob).all()


@pytest.mark.parametrize("chosen", [{"top_p": 1e-42}, {"top_p": 1e-300}, {"typical_p": 1e-300}], ids=str)
def test_the_narrowest_filter_keeps_one_id(logits: np.ndarray, chosen: dict[str, float]) -> None:
    kept = np.isfinite(processed(logits, [history(params(**chosen)) for _ in range(ROWS)]))
    np.testing.assert_array_equal(kept.sum(-1), 1)


def test_ids_as_likely_as_the_last_one_kept_are_kept_too() -> None:
    logits = np.tile(np.array([3, 2, 2, 2, 1, 0, 0, 0], np.float32), (ROWS, 1))
    kept = np.isfinite(processed(logits, [history(params(top_k=2)) for _ in range(ROWS)]))
    np.testing.assert_array_equal(kept, logits >= 2)


def chi_square(sampled: np.ndarray, expected: np.ndarray) -> float:
    observed = np.bincount(sampled, minlength=len(expected))
    return float((((observed - expected * len(sampled)) ** 2) / (expected * len(sampled))).sum())


CRITICAL = 40.5  # chi-square of 7 degrees of freedom exceeds it with probability 1e-6
SMALL = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 0.7], np.float32)
DRAWS = 4096


def test_over_seeds_ids_come_as_often_as_the_softmax_says() -> None:
    rows = [history(params(seed=seed, temperature=0.8)) for seed in range(DRAWS)]
    sampled = sample(np.tile(SMALL, (DRAWS, 1)), rows)
    assert chi_square(sampled.id, np.exp(log_softmax(SMALL / np.float32(0.8)))) < CRITICAL


def test_over_positions_of_one_seed_ids_come_as_often_as_the_softmax_says() -> None:
    rows = [history(params(seed=7), [1] * (position + 1)) for position in range(DRAWS)]
    sampled = sample(np.tile(SMALL, (DRAWS, 1)), rows)
    assert chi_square(sampled.id, np.exp(log_softmax(SMALL))) < CRITICAL


def test_chi_square_would_notice_a_wrong_temperature() -> None:
    rows = [history(params(seed=seed)) for seed in range(DRAWS)]
    sampled = sample(np.tile(SMALL, (DRAWS, 1)), rows)
    assert chi_square(sampled.id, np.exp(log_softmax(SMALL / np.float32(0.8)))) > CRITICAL


def test_a_filtered_id_is_never_drawn() -> None:
    rows = [history(params(seed=seed, top_k=3)) for seed in range(DRAWS)]
    sampled = sample(np.tile(SMALL, (DRAWS, 1)), rows)
    assert set(sampled.id.tolist()) == {0, 1, 7}


def test_a_seed_draws_the_same_id_in_any_row_of_any_batch(logits: np.ndarray) -> None:
    row = logits[0]
    chosen = params(seed=123, temperature=1.5)
    expected = sample(np.tile(row, (ROWS, 1)), [history(chosen, PROMPT) for _ in range(ROWS)]).id[0]
    for place in range(ROWS):
        others = [history(params(seed=place + n, top_p=0.5), [1] * (n + 1)) for n in range(ROWS)]
        others[place] = history(chosen, PROMPT)
        batch = logits.copy()
        batch[place] = row
        assert sample(batch, others).id[place] == expected


def test_all_64_bits_of_a_seed_matter() -> None:
    flat = np.zeros((ROWS, 1 << 14), np.float32)
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1, 2**33]
    sampled = sample(flat, [history(params(seed=seed)) for seed in seeds])
    assert len(set(sampled.id.tolist())) == len(seeds)


# --- what is reported ---------------------------------------------------------------------------------------------


def test_raw_logprobs_are_the_model_s_own_whatever_is_drawn_from(logits: np.ndarray) -> None:
    chosen = params(processed_logprobs=False, temperature=0.5, top_k=4, repetition_penalty=1.3)
    sampled = sample(logits, [history(chosen, PROMPT, GENERATED) for _ in range(ROWS)])
    np.testing.assert_allclose(in_order_of_ids(sampled), log_softmax(logits), atol=1e-5)
    np.testing.assert_allclose(sampled.logprob, log_softmax(logits)[np.arange(ROWS), sampled.id], atol=1e-5)


def test_a_processed_logprob_is_that_of_the_distribution_drawn_from(logits: np.ndarray) -> None:
    rows = [history(params(temperature=0.5, top_k=4), PROMPT) for _ in range(ROWS)]
    sampled = sample(logits, rows)
    expected = reference(logits, [oracle.TemperatureLogitsWarper(0.5), oracle.TopKLogitsWarper(4)])
    np.testing.assert_allclose(sampled.logprob, expected[np.arange(ROWS), sampled.id], atol=1e-5)


def test_alternatives_come_likeliest_first(logits: np.ndarray) -> None:
    sampled = sample(logits, [history(params()) for _ in range(ROWS)])
    np.testing.assert_array_equal(sampled.top_id, (-logits).argsort(-1, kind="stable"))
    assert (np.diff(sampled.top_logprob) <= 0).all()


@pytest.mark.parametrize("kind", ["distinct", "ties", "two finite"])
@pytest.mark.parametrize("vocab", [20 * 128, 21 * 128 + 1, 49152])
def test_the_highest_of_a_large_vocabulary_are_top_k_s_equals_in_order_of_ids(kind: str, vocab: int) -> None:
    random = np.random.default_rng(vocab)
    values = random.normal(size=(3, vocab)).astype(np.float32)
    if kind == "ties":
        values = np.round(values)
    if kind == "two finite":
        values[:, 2:] = -np.inf
    logprobs = log_softmax(values)
    ids, found = sampling.top_logprobs(jnp.asarray(values), 20)
    expected = np.argsort(-values, axis=-1, kind="stable")[:, :20]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(found, np.take_along_axis(logprobs, expected, axis=1), atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_only_the_row_whose_logits_are_not_finite_says_so(logits: np.ndarray, bad: float) -> None:
    rows = [history(params(temperature=0.9, top_p=0.9)) for _ in range(ROWS)]
    healthy = sample(logits, rows)
    logits[3, 100] = bad
    sampled = sample(logits, rows)
    np.testing.assert_array_equal(sampled.finite, np.arange(ROWS) != 3)
    np.testing.assert_array_equal(np.delete(sampled.id, 3), np.delete(healthy.id, 3))
    np.testing.assert_array_equal(np.asarray(sampling.greedy(logits, 1).finite), np.arange(ROWS) != 3)


def masked(allowed: list[list[int]], **wanted: Any) -> list[Sequence]:
    """A sequence for each list, which may only sample these ids."""
    wanted = {"processed_logprobs": False, **wanted}
    sequences = [history(params(**{"seed": row, **wanted}), PROMPT, [9]) for row in range(len(allowed))]
    for sequence in sequences:
        sequence.matcher = Matcher(None)
    return sequences


def masks(allowed: list[list[int]]) -> np.ndarray:
    words_of = np.zeros((len(allowed), words(VOCAB)), np.int32)
    for mask, ids in zip(words_of, allowed, strict=True):
        for id in ids:
            allow(mask, id)
    return words_of


@pytest.mark.parametrize("wanted", [{"temperature": 0}, {"temperature": 1.5}, {"temperature": 1.0, "top_p": 0.1}])
def test_only_ids_in_the_mask_are_sampled_with_logprobs_among_themselves(
    logits: np.ndarray, wanted: dict[str, Any]
) -> None:
    allowed = [[3, 40], [7], [31, 32, 63], list(range(VOCAB))]
    sampled = sample(logits[:4], masked(allowed, **wanted), masks=masks(allowed))
    for row, ids in enumerate(allowed):
        assert sampled.id[row] in ids
        own = logits[row, ids] - np.logaddexp.reduce(logits[row, ids])
        np.testing.assert_allclose(sampled.logprob[row], own[ids.index(sampled.id[row])], atol=1e-5)


def test_a_sequence_without_a_grammar_is_deaf_to_masks(logits: np.ndarray) -> None:
    sequences = [history(params(temperature=1.0, seed=row), PROMPT, [9]) for row in range(4)]
    expected = sample(logits[:4], sequences)
    for ours, theirs in zip(sample(logits[:4], sequences, masks=masks([[1]] * 4)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_where_all_that_a_mask_allows_is_banned_the_mask_wins(logits: np.ndarray) -> None:
    """And what it allows besides is preferred."""
    allowed = [[5], [5, 6], [5, 6, 8]]
    sequences = masked(allowed, temperature=0, min_tokens=9, stop_token_ids=(5, 6))
    sampled = sample(logits[:3], sequences, masks=masks(allowed))
    assert sampled.id.tolist() == [5, [5, 6][int(np.argmax(logits[1, [5, 6]]))], 8]


def test_where_a_mask_allows_no_biased_id_the_mask_wins(logits: np.ndarray) -> None:
    allowed = [[5, 6], [5, 6]]
    sequences = masked(allowed, temperature=0, logit_bias={5: 0.0}, only_biased=True)
    assert sample(logits[:2], sequences, masks=masks(allowed)).id.tolist() == [5, 5]
    sequences = masked(allowed, temperature=0, logit_bias={9: 0.0}, only_biased=True)
    ids = sample(logits[:2], sequences, masks=masks(allowed)).id.tolist()
    assert ids == [[5, 6][int(np.argmax(row[[5, 6]]))] for row in logits[:2]]
