"""Every sampler that llama.cpp has against its own: random rows, each with parameters of its own.

Where the two differ, the test computes the row again in float64: both must be what thresholds moved by 1e-5 would
leave. Ids whose logits are equal are one to us; llama.cpp sorts them and may cut between them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jaxengine.llama_cpp import llama_cpp
from tests.jaxengine.sampler import history, in_order_of_ids, sample_with, sampler_state_of
from tests.jaxengine.sampler_formulas import Step, behind, log_softmax, next_bound
from tests.jaxengine.sampler_rows import (
    FAINT,
    MOST_UNDECIDED,
    ROWS,
    TOGETHER,
    VOCABULARIES,
    Asked,
    Random,
    Rows,
    Steps,
    any_order,
    assert_close,
    assert_same,
    dry,
    logarithmic,
    ours,
    ours_behind,
    params_of,
    plain_temperature,
    random_logits,
    random_rows,
    random_texts,
    sometimes,
)

pytestmark = pytest.mark.slow

FILTERS = ("temperature", "top_n_sigma", "xtc", "top_k", "top_p", "typical_p", "min_p")


def down_to_zero(random: Random) -> tuple[float, ...]:
    """Of a dynamic temperature."""
    return logarithmic(random, 0.3, 2), logarithmic(random, 0.05, 2), logarithmic(random, 0.3, 3)


def assert_llama_cpp_agrees(folder: Path, rows: Rows, faintest: float = -np.inf) -> int:
    theirs = llama_cpp(folder, rows.logits, [[(name, *asked) for name, asked in steps] for steps in rows.steps])
    return assert_same(rows, ours(rows), theirs.logits, faintest)


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_leaves_what_llama_cpp_leaves(name: str, tmp_path: Path) -> None:
    undecided = total = 0
    for rows in random_rows(1, sometimes(name)):
        undecided += assert_llama_cpp_agrees(tmp_path, rows)
        total += len(rows.steps)
    print(f"{name}: {total} rows, {undecided} within float32's rounding of a threshold")
    assert undecided <= MOST_UNDECIDED * total


def test_a_dynamic_temperature_down_to_zero_is_llama_cpp_s(tmp_path: Path) -> None:
    """In probabilities: at a temperature next to 0 they differ in how far below zero the rest lies."""
    undecided = total = 0
    for rows in random_rows(2, sometimes("temperature", down_to_zero)):
        undecided += assert_llama_cpp_agrees(tmp_path, rows, FAINT)
        total += len(rows.steps)
    print(f"dynamic temperature: {total} rows, {undecided} within float32's rounding of the entropy")
    assert undecided <= MOST_UNDECIDED * total


def test_filters_in_any_order_leave_what_llama_cpp_s_chain_leaves(tmp_path: Path) -> None:
    """Without equal logits: what is behind a cut between them differs in more than these."""
    undecided = total = 0
    for rows in random_rows(3, any_order(FILTERS), ties=False, batches=TOGETHER):
        undecided += assert_llama_cpp_agrees(tmp_path, rows)
        total += len(rows.steps)
    print(f"orders: {total} rows, {undecided} within float32's rounding of a threshold")
    assert undecided <= MOST_UNDECIDED * total


# --- samplers that look back ---------------------------------------------------------------------------------------


ALL = 1 << 16  # ids that llama.cpp looks back


def penalties(random: Random, ids: list[int]) -> Asked:
    return {
        "repetition_penalty": logarithmic(random, 0.5, 2),
        "frequency_penalty": random.uniform(-2, 2),
        "presence_penalty": random.uniform(-2, 2),
        "repetition_range": int(random.integers(1, 70)),
    }


def nothing(random: Random, ids: list[int]) -> Asked:
    return {}


def some_of(*kinds: Callable[[Random, list[int]], Asked]) -> Callable[[Random, list[int]], Asked]:
    def asked_of(random: Random, ids: list[int]) -> Asked:
        kind = kinds[random.integers(len(kinds))]
        return kind(random, ids)

    return asked_of


def both(random: Random, ids: list[int]) -> Asked:
    return penalties(random, ids) | dry(random, ids) | {"penalties_first": bool(random.integers(2))}


def chain_of(asked: Asked, vocab: int) -> list[tuple[Any, ...]]:
    """With the penalties first where that is asked."""
    chain: list[tuple[Any, ...]] = []
    if "dry_multiplier" in asked:
        multiplier, base, allowed, last, breakers = (value for name, value in asked.items() if name.startswith("dry_"))
        chain.append(("dry", multiplier, base, allowed, last or ALL, breakers))
    if "repetition_range" in asked:
        repetition, frequency, presence, last = (asked[name] for name in penalties(np.random.default_rng(0), []))
        chain.append(("penalties", vocab, last, repetition, frequency, presence))
    return chain[::-1] if asked.get("penalties_first") else chain


@pytest.mark.parametrize(
    "asked_of",
    [
        some_of(penalties, penalties, penalties, nothing),
        some_of(dry, dry, dry, nothing),
        some_of(penalties, dry, both),
    ],
    ids=["penalties over a range", "DRY", "both, in either order"],
)
def test_what_looks_back_takes_as_much_as_llama_cpp_s(
    asked_of: Callable[[Random, list[int]], Asked], tmp_path: Path
) -> None:
    for texts in random_texts(4, asked_of):
        vocab = texts.logits.shape[1]
        theirs = llama_cpp(tmp_path, texts.logits, [chain_of(asked, vocab) for asked in texts.asked], texts.ids)
        assert_close(ours_behind(texts, 5), log_softmax(theirs.logits), [*zip(texts.asked, texts.ids, strict=True)])


# --- mirostat ------------------------------------------------------------------------------------------------------


TEXTS, TOKENS = 128, 28  # of each vocabulary: 10,752 rows


def test_mirostat_keeps_what_llama_cpp_keeps_along_llama_cpp_s_own_draws(tmp_path: Path) -> None:
    """The bound follows the published rule, in float64, from the ids that llama.cpp draws."""
    random = np.random.default_rng(6)
    for vocab in VOCABULARIES:
        logits = random_logits(random, vocab, TEXTS * TOKENS)
        asked = [mirostat(random) for _ in range(TEXTS)]
        chains = [[("temperature", *warm), ("mirostat", *values)] for warm, values in asked]
        theirs = llama_cpp(tmp_path, logits, chains, steps=TOKENS)
        of_texts = theirs.logits.reshape(TEXTS, TOKENS, vocab), theirs.chosen.reshape(TEXTS, TOKENS)
        steps = [each for text in zip(asked, *of_texts, strict=True) for each in steps_along(*text)]
        rows = Rows(logits, steps)
        assert_same(rows, ours_at(rows), theirs.logits)


Mirostat = tuple[tuple[float, ...], tuple[float, float]]


def mirostat(random: Random) -> Mirostat:
    """Temperature, and what mirostat is told."""
    return plain_temperature(random), (random.uniform(0.2, 6), random.uniform(0.01, 1))


def steps_along(asked: Mirostat, left: np.ndarray, drawn: np.ndarray) -> list[Steps]:
    """Those of each token of a text, mirostat's with the bound behind the ids `drawn` of the logits `left`."""
    (tau, eta), steps, bound = asked[1], [], 2 * asked[1][0]
    for logits, id in zip(left, drawn, strict=True):
        steps.append(steps_at(asked, bound))
        bound = next_bound(logits, id, tau, eta, bound)
    return steps


def steps_at(asked: Mirostat, bound: float) -> Steps:
    return Step("temperature", asked[0]), Step("mirostat", (*asked[1], bound))


def ours_at(rows: Rows) -> np.ndarray:
    """Log-probabilities where mirostat's bound is that of each row."""
    left = []
    for start in range(0, len(rows.logits), ROWS):
        here = slice(start, start + ROWS)
        sequences = [history(params_of(steps)) for steps in rows.steps[here]]
        state = sampler_state_of(sequences, rows.logits.shape[1])
        bounds = [steps[-1].arguments[-1] for steps in rows.steps[here]]
        state = state._replace(surprise=state.surprise.at[: len(bounds)].set(np.array(bounds, np.float32)))
        left.append(in_order_of_ids(sample_with(rows.logits[here], sequences, state)[0]))
    return np.concatenate(left)


def test_mirostat_s_bound_follows_our_own_draws() -> None:
    """What it keeps of each token is what the formula keeps whose bound is moved in float64."""
    random = np.random.default_rng(7)
    for vocab in VOCABULARIES:
        asked = [mirostat(random) for _ in range(ROWS)]
        bounds, texts = [2 * tau for _, (tau, _) in asked], [[0] for _ in asked]
        state = sampler_state_of([history(params_of(steps_at(each, 0))) for each in asked], vocab)
        for _ in range(TOGETHER):
            rows = Rows(random_logits(random, vocab, ROWS), list(map(steps_at, asked, bounds)))
            sequences = [history(params_of(steps), ids) for steps, ids in zip(rows.steps, texts, strict=True)]
            sampled, state = sample_with(rows.logits, sequences, state)
            left = in_order_of_ids(sampled)
            assert_same(rows, left, np.stack(list(map(behind, rows.logits, rows.steps))))
            for row, id in enumerate(sampled.id.tolist()):
                tau, eta = asked[row][1]
                bounds[row] = next_bound(left[row], id, tau, eta, bounds[row])
                texts[row].append(id)
