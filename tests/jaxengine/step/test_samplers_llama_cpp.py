"""Every sampler that llama.cpp has against its own: random rows, each with parameters of its own.

Where the two differ, the test computes the row again in float64: both must be what thresholds moved by 1e-5 would
leave. Ids whose logits are equal are one to us; llama.cpp sorts them and may cut between them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxengine.request.sampling_params import SamplingParams
from tests.jaxengine.llama_cpp import llama_cpp
from tests.jaxengine.sampler import history, pack, processed, sample, sampler_state_of
from tests.jaxengine.sampler_formulas import Step, log_softmax
from tests.jaxengine.sampler_rows import (
    FAINT,
    ROWS,
    VOCABULARIES,
    Rows,
    Steps,
    assert_close,
    assert_same,
    ours,
    ours_behind,
    params,
    params_of,
    random_rows,
    random_texts,
    row_of_logits,
    same,
)

pytestmark = pytest.mark.slow

MOST_UNDECIDED = 0.005  # of all rows, far above what there are: a wrong rule would not hide behind rounding

Random = np.random.Generator


def logarithmic(random: Random, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


ARGUMENTS: dict[str, Callable[[Random], tuple[float, ...]]] = {
    "temperature": lambda random: (logarithmic(random, 0.2, 5), 0.0, 1.0),
    "top_n_sigma": lambda random: (random.uniform(0.05, 4),),
    "xtc": lambda random: (1.0, logarithmic(random, 0.001, 0.6)),
    "top_k": lambda random: (int(logarithmic(random, 1, 1200)),),
    "top_p": lambda random: (random.uniform(0.01, 0.999),),
    "typical_p": lambda random: (random.uniform(0.01, 0.999),),
    "min_p": lambda random: (logarithmic(random, 1e-4, 1),),
}


def dynamic_temperature(random: Random) -> tuple[float, ...]:
    return logarithmic(random, 0.3, 2), logarithmic(random, 0.05, 2), logarithmic(random, 0.3, 3)


def sometimes(name: str, arguments: Callable[[Random], tuple[float, ...]], random: Random) -> Steps:
    """In one row of five nothing is asked for."""
    return [Step(name, arguments(random))] if random.random() < 0.8 else []


def assert_llama_cpp_agrees(folder: Path, rows: Rows, faintest: float = -np.inf) -> int:
    theirs = llama_cpp(folder, rows.logits, [[(name, *asked) for name, asked in steps] for steps in rows.steps])
    return assert_same(rows, ours(rows), theirs.logits, faintest)


@pytest.mark.parametrize("name", [*ARGUMENTS])
def test_a_filter_leaves_what_llama_cpp_leaves(name: str, tmp_path: Path) -> None:
    undecided = total = 0
    for rows in random_rows(1, lambda random: sometimes(name, ARGUMENTS[name], random)):
        undecided += assert_llama_cpp_agrees(tmp_path, rows)
        total += len(rows.steps)
    print(f"{name}: {total} rows, {undecided} within float32's rounding of a threshold")
    assert undecided <= MOST_UNDECIDED * total


def test_dynamic_temperature_is_llama_cpp_s(tmp_path: Path) -> None:
    """In probabilities: at a temperature next to 0 they differ in how far below zero the rest lies."""
    undecided = total = 0
    for rows in random_rows(2, lambda random: sometimes("temperature", dynamic_temperature, random)):
        undecided += assert_llama_cpp_agrees(tmp_path, rows, FAINT)
        total += len(rows.steps)
    print(f"dynamic temperature: {total} rows, {undecided} within float32's rounding of the entropy")
    assert undecided <= MOST_UNDECIDED * total


def random_order(random: Random) -> Steps:
    names = random.permutation([*ARGUMENTS])[: random.integers(2, 5)]
    return [Step(str(name), ARGUMENTS[str(name)](random)) for name in names]


def test_filters_in_any_order_leave_what_llama_cpp_s_chain_leaves(tmp_path: Path) -> None:
    """Without equal logits: what is behind a cut between them differs in more than these."""
    undecided = total = 0
    for rows in random_rows(3, random_order, ties=False):
        undecided += assert_llama_cpp_agrees(tmp_path, rows)
        total += len(rows.steps)
    print(f"orders: {total} rows, {undecided} within float32's rounding of a threshold")
    assert undecided <= MOST_UNDECIDED * total


# --- samplers that look back ---------------------------------------------------------------------------------------


ALL = 1 << 16  # ids that llama.cpp looks back


def penalties(random: Random, ids: list[int]) -> dict[str, Any]:
    return {
        "repetition_penalty": logarithmic(random, 0.5, 2),
        "frequency_penalty": random.uniform(-2, 2),
        "presence_penalty": random.uniform(-2, 2),
        "repetition_range": int(random.integers(1, 70)),
    }


def dry(random: Random, ids: list[int]) -> dict[str, Any]:
    """Breakers in half of the rows, of which most stand in the text."""
    breakers = random.choice([*ids, 0], random.integers(1, 3)) if random.random() < 0.5 else np.zeros(0, int)
    return {
        "dry_multiplier": random.uniform(0.1, 5),
        "dry_base": random.uniform(1, 3),
        "dry_allowed_length": int(random.integers(1, 6)),
        "dry_range": int(random.integers(1, 70)) if random.random() < 0.5 else 0,
        "dry_breakers": tuple(sorted(set(breakers.tolist()))),
    }


def nothing(random: Random, ids: list[int]) -> dict[str, Any]:
    return {}


def some_of(*kinds: Callable[[Random, list[int]], dict[str, Any]]) -> Callable[[Random, list[int]], dict[str, Any]]:
    def asked_of(random: Random, ids: list[int]) -> dict[str, Any]:
        kind = kinds[random.integers(len(kinds))]
        return kind(random, ids)

    return asked_of


def chain_of(asked: dict[str, Any], vocab: int) -> list[tuple[Any, ...]]:
    chain: list[tuple[Any, ...]] = []
    if "dry_multiplier" in asked:
        multiplier, base, allowed, last, breakers = (value for name, value in asked.items() if name.startswith("dry_"))
        chain.append(("dry", multiplier, base, allowed, last or ALL, breakers))
    if "repetition_range" in asked:
        repetition, frequency, presence, last = (asked[name] for name in penalties(np.random.default_rng(0), []))
        chain.append(("penalties", vocab, last, repetition, frequency, presence))
    return chain


@pytest.mark.parametrize(
    "asked_of",
    [
        some_of(penalties, penalties, penalties, nothing),
        some_of(dry, dry, dry, nothing),
        some_of(penalties, dry, lambda random, ids: penalties(random, ids) | dry(random, ids)),
    ],
    ids=["penalties over a range", "DRY", "both"],
)
def test_what_looks_back_takes_as_much_as_llama_cpp_s(
    asked_of: Callable[[Random, list[int]], dict[str, Any]], tmp_path: Path
) -> None:
    for texts in random_texts(4, asked_of):
        vocab = texts.logits.shape[1]
        theirs = llama_cpp(tmp_path, texts.logits, [chain_of(asked, vocab) for asked in texts.asked], texts.ids)
        assert_close(ours_behind(texts, 5), log_softmax(theirs.logits), [*zip(texts.asked, texts.ids, strict=True)])
