"""Phi 3's two sets of frequencies: a text that exceeds the trained length is computed again, as in transformers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxengine.engine.engine import Engine
from tests.families.references import zoo_logits
from tests.jaxengine.engines import ask, load, logprob_rows, prompt, serve
from tests.tiny import VOCAB

pytestmark = pytest.mark.slow

TRAINED = 16


@pytest.fixture(scope="module")
def engine(zoo: Callable[[str], Path]) -> Engine:
    return load(zoo("phi3_longrope"), max_batch_size=3, max_batch_prefill_tokens=32, max_total_tokens=64)


@pytest.mark.parametrize("length", [5, TRAINED - 1, TRAINED, TRAINED + 1])
def test_every_token_is_that_of_its_text_in_one_shot(length: int, engine: Engine, zoo: Callable[[str], Path]) -> None:
    """Two more requests run beside it: one exceeds the trained length at another step, one never does."""
    ids = prompt(length, seed=length)
    others = [ask(2, prompt(9), max_tokens=14), ask(3, prompt(3, seed=7), max_tokens=9)]
    answers = serve(engine, [ask(1, ids, max_tokens=18, logprobs=VOCAB), *others])
    text = [*ids, *answers[1].ids]
    expected = np.stack([zoo_logits(zoo("phi3_longrope"), text[:end])[-1] for end in range(length, len(text))])
    assert answers[1].ids == expected.argmax(-1).tolist()
    got = logprob_rows(answers[1].tokens)
    np.testing.assert_allclose(got, torch.from_numpy(expected).log_softmax(-1).numpy(), atol=1e-3)
    assert len(answers[2].ids) == 14 and len(answers[3].ids) == 9


def test_a_text_within_the_trained_length_is_computed_once(engine: Engine) -> None:
    before = engine.scheduler.preemptions
    serve(engine, [ask(4, prompt(6), max_tokens=TRAINED - 6)])
    assert engine.scheduler.preemptions == before
