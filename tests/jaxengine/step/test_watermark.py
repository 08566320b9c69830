"""The watermark of Kirchenbauer et al. (arXiv 2301.10226): a detector that knows the green lists finds it."""

import itertools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from jaxengine.step import sampling
from tests.jaxengine.engines import alone, ask, prompt, serve
from tests.tiny import VOCAB

GAMMA, DELTA = 0.25, 3.0
LENGTH = 100


def greens(ids: Sequence[int], gamma: float) -> list[bool]:
    """Whether each id but the first is on the green list of the one before."""
    return [
        bool(sampling.green_list(jnp.int32(before), jnp.float32(gamma), VOCAB)[id])
        for before, id in itertools.pairwise(ids)
    ]


def z_score(ids: Sequence[int], gamma: float) -> float:
    """How many standard deviations more green ids there are than chance gives (equation 3 of the paper)."""
    found = greens(ids, gamma)
    return (sum(found) - gamma * len(found)) / math.sqrt(len(found) * gamma * (1 - gamma))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_detector_finds_the_watermark_and_nothing_where_there_is_none(narrow: Engine, temperature: float) -> None:
    start = prompt(9)
    common = {"temperature": temperature, "max_tokens": LENGTH}
    marked = ask(1, start, watermark_gamma=GAMMA, watermark_delta=DELTA, **common)
    plain = ask(2, start, **common)
    answers = serve(narrow, [marked, plain])
    assert z_score([start[-1], *answers[1].ids], GAMMA) > 4
    assert answers[2].ids == alone(narrow, plain).ids, "a neighbour's watermark changed a request without one"
    if temperature:
        assert abs(z_score([start[-1], *answers[2].ids], GAMMA)) < 4


def test_the_first_token_is_marked_by_the_last_of_the_prompt(narrow: Engine) -> None:
    for number in range(4):
        start = prompt(5 + number, seed=number)
        strong = ask(number, start, watermark_gamma=GAMMA, watermark_delta=100.0, max_tokens=3)
        assert all(greens([start[-1], *serve(narrow, [strong])[number].ids], GAMMA))


def test_a_green_list_has_its_share_of_ids_and_differs_after_each_token() -> None:
    lists = np.stack([sampling.green_list(jnp.int32(i), jnp.float32(GAMMA), VOCAB) for i in range(64)])
    assert lists.mean() == pytest.approx(GAMMA, abs=0.02)
    agreement = np.mean([np.mean(a == b) for a, b in itertools.pairwise(lists)])
    assert agreement == pytest.approx(GAMMA**2 + (1 - GAMMA) ** 2, abs=0.03)


def test_no_share_is_no_watermark() -> None:
    assert not sampling.green_list(jnp.int32(3), jnp.float32(0), VOCAB).any()
