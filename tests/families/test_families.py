"""Every family's tiny checkpoint gives its reference's logits, f32 within 1e-3, however a text is cut into steps."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from convert.compose import compose
from convert.config.config import Config
from convert.formats.shards import open_tensors
from tests.families.forward import Forward
from tests.families.references import zoo_logits
from tests.families.zoo import NAMES
from tests.tiny import BOS, VOCAB

PROMPT, CACHED, NEW = 24, 16, 12
QUICK = ("bloom", "gemma2", "gpt2", "mixtral", "qwen3")  # as different as five can be


def prompt_of(name: str) -> list[int]:
    return [BOS, *np.random.default_rng(sum(name.encode())).integers(4, VOCAB, PROMPT - 1).tolist()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_logits_and_greedy_ids_are_the_reference_s(name: str, zoo: Callable[[str], Path]) -> None:
    directory, ids = zoo(name), prompt_of(name)
    source = compose(Config.load(directory / "config.json"), open_tensors(directory))
    model = Forward(source)
    rows = list(model.prefill(0, ids, 0, PROMPT))
    for position in range(PROMPT, PROMPT + NEW):
        ids.append(int(rows[-1].argmax()))
        rows.append(model.decode(0, ids[-1], position, PROMPT))
    expected = zoo_logits(directory, ids)
    assert np.ptp(expected, axis=1).min() > 0.5 and len(set(expected.argmax(-1))) > 2  # the checkpoint says something
    np.testing.assert_allclose(np.stack(rows), expected, atol=1e-3)
    assert ids[PROMPT:] == expected.argmax(-1)[PROMPT - 1 : -1].tolist()
    behind_a_prefix_and_in_chunks(model, ids, expected)


def behind_a_prefix_and_in_chunks(model: Forward, ids: list[int], expected: np.ndarray) -> None:
    """The first page is the other sequence's, unless layers keep states; the rest comes in chunks, cut inside pages."""
    cached = 0 if model.source.spec.keeps_states else CACHED
    model.share(0, 1, cached // 16)
    cuts = sorted({cached, CACHED + 1, CACHED + 9, len(ids)})
    rows = [model.prefill(1, ids[first:last], first, len(ids)) for first, last in pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate(rows), expected[cached:], atol=1e-3)
