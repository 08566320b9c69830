"""Samplers as they would be without some of what they do: what that costs is the difference."""

from typing import Any
from unittest.mock import patch

from jaxengine.step import buffer, filters, sampling
from tests.gpu_compile.h200 import Facts
from tests.gpu_compile.steps import FOUR_LAYERS, sample


def sample_without_masks() -> Facts:
    """`sample` as it would be if no grammar had to be asked."""
    with patch.object(sampling, "_mask", lambda logits, samples, state: logits):
        return sample(FOUR_LAYERS, 1, greedy=False)


def sample_without_samplers() -> Facts:
    """`sample` as it would be if nobody looked back or filtered."""

    def as_counted(scores: Any, samples: Any, state: Any, memory: Any, guesses: int) -> Any:
        repetition = samples.repetition_penalty[:, None]
        return sampling._ban(sampling._penalise(scores, samples, memory, repetition), samples, state, memory)

    def unfiltered(scores: Any, samples: Any, state: Any) -> filters.Filtered:
        return filters.Filtered(scores, scores[:, 0])

    with patch.object(sampling, "_look_back", as_counted), patch.object(filters, "narrow", unfiltered):
        return sample(FOUR_LAYERS, 1, greedy=False)


def sample_without_sums() -> Facts:
    """`sample` as it would be if no beam search added up what it says."""
    with patch.object(sampling, "_normalise", lambda logits, samples: logits), patch.object(buffer, "SUMMED", 0):
        return sample(FOUR_LAYERS, 1, greedy=False)
