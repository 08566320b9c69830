"""Every sampler that transformers has against its logits processors: random rows, each with parameters of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as oracle

from tests.jaxengine.sampler_formulas import log_softmax
from tests.jaxengine.sampler_rows import (
    ALONE,
    MOST_UNDECIDED,
    RANGES,
    TOGETHER,
    Asked,
    Random,
    Steps,
    any_order,
    assert_close,
    assert_same,
    logarithmic,
    ours,
    ours_behind,
    plain_temperature,
    random_rows,
    random_texts,
    sometimes,
)

pytestmark = pytest.mark.slow

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PROCESSORS: dict[str, Callable[[float], Processor]] = {
    "temperature": oracle.TemperatureLogitsWarper,
    "top_k": lambda k: oracle.TopKLogitsWarper(int(k)),
    "top_p": oracle.TopPLogitsWarper,
    "typical_p": oracle.TypicalLogitsWarper,
    "min_p": oracle.MinPLogitsWarper,
    "epsilon_cutoff": oracle.EpsilonLogitsWarper,
    "eta_cutoff": oracle.EtaLogitsWarper,
}
STATIC = RANGES | {"temperature": plain_temperature}


def reference(logits: np.ndarray, processors: list[Processor], ids: list[int]) -> np.ndarray:
    """Logits f32 [V]"""
    scores, text = torch.from_numpy(logits[None].copy()), torch.tensor([ids])
    for process in processors:
        scores = process(text, scores)
    return scores[0].numpy()


def assert_transformers_agrees(
    seed: int, steps_of: Callable[[Random], Steps], ties: bool = True, batches: int = ALONE
) -> None:
    undecided = total = 0
    for rows in random_rows(seed, steps_of, ties, batches):
        chains = [[PROCESSORS[name](arguments[0]) for name, arguments in steps] for steps in rows.steps]
        theirs = [reference(row, chain, [0]) for row, chain in zip(rows.logits, chains, strict=True)]
        undecided += assert_same(rows, ours(rows), np.stack(theirs))
        total += len(rows.steps)
    print(f"{total} rows, {undecided} within float32's rounding of a threshold")
    assert undecided <= MOST_UNDECIDED * total


@pytest.mark.parametrize("name", [*PROCESSORS])
def test_a_filter_leaves_what_transformers_leaves(name: str) -> None:
    assert_transformers_agrees(11, sometimes(name, STATIC[name]))


def test_filters_in_any_order_leave_what_transformers_leaves() -> None:
    """Without equal logits, between which its top-p may cut."""
    assert_transformers_agrees(12, any_order([*PROCESSORS], ranges=STATIC), ties=False, batches=TOGETHER)


def repetition(random: Random, ids: list[int]) -> Asked:
    return {"repetition_penalty": logarithmic(random, 0.5, 2)} if random.random() < 0.8 else {}


def ngrams(random: Random, ids: list[int]) -> Asked:
    return {"no_repeat_ngram_size": int(random.integers(1, 9))} if random.random() < 0.8 else {}


def both(random: Random, ids: list[int]) -> Asked:
    return repetition(random, ids) | ngrams(random, ids)


LOOKING_BACK: dict[str, Callable[[Any], Processor]] = {
    "repetition_penalty": oracle.RepetitionPenaltyLogitsProcessor,
    "no_repeat_ngram_size": oracle.NoRepeatNGramLogitsProcessor,
}


@pytest.mark.parametrize("asked_of", [repetition, ngrams, both])
def test_what_looks_back_does_what_transformers_does(
    asked_of: Callable[[Random, list[int]], Asked],
) -> None:
    for texts in random_texts(13, asked_of):
        asked = [*zip(texts.asked, texts.ids, strict=True)]
        theirs = np.stack([left_by(*row) for row in zip(texts.logits, texts.asked, texts.ids, strict=True)])
        assert_close(ours_behind(texts, 14), log_softmax(theirs), asked)


def left_by(logits: np.ndarray, asked: Asked, ids: list[int]) -> np.ndarray:
    """Where the n-grams ban every id, we ban none."""
    left = reference(logits, [LOOKING_BACK[name](value) for name, value in asked.items()], ids)
    if np.isfinite(left).any():
        return left
    return left_by(logits, {name: value for name, value in asked.items() if name != "no_repeat_ngram_size"}, ids)
