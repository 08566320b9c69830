"""Samplers against formulas in float64, where no library serves: those that only Aphrodite and KoboldCpp have, every
filter in any order, what looks back counted by hand, and how often XTC acts.
"""

from collections.abc import Callable

import numpy as np
import pytest

from tests.jaxengine.sampler import history, processed, sample
from tests.jaxengine.sampler_formulas import behind, log_softmax
from tests.jaxengine.sampler_rows import (
    MOST_UNDECIDED,
    RANGES,
    TOGETHER,
    Asked,
    Random,
    Rows,
    any_order,
    assert_close,
    assert_same,
    dry,
    logarithmic,
    ours,
    ours_behind,
    params,
    random_rows,
    random_texts,
    sometimes,
)

pytestmark = pytest.mark.slow


def expected(rows: Rows) -> np.ndarray:
    """Logits, f64 [N, V]"""
    return np.stack(list(map(behind, rows.logits, rows.steps)))


@pytest.mark.parametrize("name", ["top_a", "smoothing_factor"])
def test_a_filter_of_aphrodite_leaves_what_its_formula_leaves(name: str) -> None:
    for rows in random_rows(21, sometimes(name)):
        assert assert_same(rows, ours(rows), expected(rows)) <= MOST_UNDECIDED * len(rows.steps)


def test_skew_bends_the_sums_of_probabilities_in_the_order_of_ids() -> None:
    """In probabilities: a difference of two sums next to 1 has no more digits than these."""
    for rows in random_rows(22, sometimes("skew")):
        mine, exact = np.exp(ours(rows)), np.exp(log_softmax(expected(rows)))
        np.testing.assert_allclose(mine, exact, atol=2e-5)
        assert np.isfinite(ours(rows))[np.isneginf(rows.logits)].sum() == 0


def test_all_filters_in_any_order_leave_what_their_formulas_leave() -> None:
    names = sorted(RANGES.keys() - {"skew"})
    undecided = total = 0
    for rows in random_rows(23, any_order(names, most=5), ties=False, batches=TOGETHER):
        undecided += assert_same(rows, ours(rows), expected(rows))
        total += len(rows.steps)
    print(f"orders: {total} rows, {undecided} within float32's rounding of a threshold")
    assert undecided <= MOST_UNDECIDED * total


def test_xtc_keeps_one_of_two_ids_whose_probabilities_round_to_one() -> None:
    logits = np.array([[0, -1e-8, -2e-8, -9]], np.float32)
    kept = np.isfinite(processed(logits, [history(params(xtc_probability=1.0, xtc_threshold=0.2))]))
    np.testing.assert_array_equal(kept, [[False, False, True, True]])


# --- what looks back -----------------------------------------------------------------------------------------------


def repetition(ids: list[int], end: int, breakers: tuple[int, ...]) -> int:
    """How many ids in front of index `end` are the text's last, without a breaker among them."""
    length = 0
    while length < end and ids[end - 1 - length] == ids[-1 - length] and ids[-1 - length] not in breakers:
        length += 1
    return length


def behind_dry(x: np.ndarray, ids: list[int], asked: Asked) -> np.ndarray:
    window, breakers = ids[-asked["dry_range"] :], asked["dry_breakers"]
    longest: dict[int, int] = {}
    for end, id in enumerate(window):
        longest[id] = max(longest.get(id, 0), repetition(window, end, breakers))
    x = x.astype(np.float64)
    for id, length in longest.items():
        if length >= asked["dry_allowed_length"] and id not in breakers:
            x[id] -= asked["dry_multiplier"] * asked["dry_base"] ** (length - asked["dry_allowed_length"])
    return x


def sloped(random: Random, ids: list[int]) -> Asked:
    return {
        "repetition_penalty": logarithmic(random, 0.5, 2),
        "repetition_range": int(random.integers(1, 70)),
        "repetition_slope": random.random(),
    }


def behind_slope(x: np.ndarray, ids: list[int], asked: Asked) -> np.ndarray:
    """KoboldCpp's."""
    window = ids[-asked["repetition_range"] :]
    older, newer = window[: len(window) // 2], window[len(window) // 2 :]
    penalty, x = asked["repetition_penalty"], x.astype(np.float64)
    reduced = 1 + (penalty - 1) * asked["repetition_slope"] if penalty > 1 else penalty
    for id in {*older, *newer}:
        factor = penalty if id in newer else reduced
        x[id] = x[id] / factor if x[id] > 0 else x[id] * factor
    return x


@pytest.mark.parametrize("asked_of, formula", [(dry, behind_dry), (sloped, behind_slope)], ids=["DRY", "slope"])
def test_what_looks_back_takes_what_its_rule_says(
    asked_of: Callable[[Random, list[int]], Asked], formula: Callable[[np.ndarray, list[int], Asked], np.ndarray]
) -> None:
    for texts in random_texts(24, asked_of):
        left = np.stack(list(map(formula, texts.logits, texts.ids, texts.asked)))
        assert_close(ours_behind(texts, 25), log_softmax(left), [*zip(texts.asked, texts.ids, strict=True)])


# --- chance --------------------------------------------------------------------------------------------------------

SMALL = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 0.7], np.float32)  # two of p ≥ 0.15
DRAWS = 4096
SIGMAS = 5  # a fair draw is further off once in 1.7 million
CRITICAL = 40.5  # chi-square of 7 degrees of freedom exceeds it with probability 1e-6


@pytest.mark.parametrize("probability", [0.05, 0.3, 0.5, 0.9])
def test_xtc_acts_as_often_as_its_probability_says(probability: float) -> None:
    """Over seeds and positions, whatever id is drawn."""
    places = [(place // 63, place % 63 + 1) for place in range(DRAWS)]
    rows = [
        history(params(seed=seed, xtc_probability=probability, xtc_threshold=0.15), [1] * length)
        for seed, length in places
    ]
    logits = np.tile(SMALL, (DRAWS, 1))
    acted = ~np.isfinite(processed(logits, rows)[:, 0])
    off = acted.sum() - DRAWS * probability
    assert abs(off) < SIGMAS * np.sqrt(DRAWS * probability * (1 - probability))
    drawn = np.bincount(sample(logits, rows).id, minlength=len(SMALL))
    dropped = np.exp(log_softmax(np.where(np.arange(len(SMALL)) == 0, -np.inf, SMALL)))
    mixed = DRAWS * (probability * dropped + (1 - probability) * np.exp(log_softmax(SMALL)))
    assert ((drawn - mixed) ** 2 / mixed).sum() < CRITICAL
