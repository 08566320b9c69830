"""Models with an encoder in the engine: a request's answer is the reference's, alone and among others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxengine.engine.engine import Engine
from tests.families.seq2seq import seq2seq_logits, start_of
from tests.jaxengine.engines import Answer, alone, ask, load, logprob_rows, prompt, serve
from tests.tiny import VOCAB

pytestmark = pytest.mark.slow

Zoo = Callable[[str], Path]
NAME = "flan_t5"


@pytest.fixture(scope="module")
def engine(seq2seq: Zoo) -> Engine:
    """A pool for fewer tokens than four requests have, so that some are preempted."""
    small = {"max_batch_size": 4, "max_batch_prefill_tokens": 64, "max_total_tokens": 96}
    return load(seq2seq(NAME), max_batch_total_tokens=15 * 16, **small)


def expected_of(answer: Answer, directory: Path, source: list[int]) -> np.ndarray:
    """The reference's log-probabilities where `answer` has drawn its ids: f32 [ids, VOCAB]."""
    logits = seq2seq_logits(directory, source, [start_of(NAME), *answer.ids[:-1]])
    return torch.from_numpy(logits).log_softmax(-1).numpy()  # type: ignore[no-any-return]


def test_greedy_ids_and_logits_are_the_reference_s(engine: Engine, seq2seq: Zoo) -> None:
    source = prompt(70)  # longer than a step, but the encoder reads a prompt whole
    answer = alone(engine, ask(1, source, max_tokens=20, logprobs=VOCAB, prompt_logprobs=True))
    expected = expected_of(answer, seq2seq(NAME), source)
    np.testing.assert_allclose(logprob_rows(answer.tokens), expected, atol=1e-3)
    assert answer.ids == expected.argmax(-1).tolist()
    assert [token.id for token in answer.prompt] == [start_of(NAME)]


def test_neighbours_and_preemption_change_nothing(engine: Engine) -> None:
    requests = [
        ask(n, prompt(length, seed=n), max_tokens=40, temperature=n % 2)
        for n, length in enumerate((40, 17, 5, 56, 1, 33), 10)
    ]
    before = engine.stats()
    together = serve(engine, requests)
    after = engine.stats()
    assert after.preemptions > before.preemptions and after.cached_prompt_tokens == 0
    assert after.compiles_after_warmup == 0
    for request in requests:
        assert together[request.id].ids == alone(engine, request).ids
    assert after.prompt_tokens - before.prompt_tokens >= sum(len(request.prompt) for request in requests)


def test_what_does_not_fit_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="prompt of 90 tokens and max_tokens 7 make 97, more than max_total_tokens 96"):
        engine.submit(ask(20, prompt(90), max_tokens=7))
