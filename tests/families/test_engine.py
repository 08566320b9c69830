"""One family of each arrangement through the whole engine: a prompt in chunks, and tokens behind a cached prefix."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.families.references import zoo_logits
from tests.jaxengine.engines import alone, ask, load, logprob_rows, prompt, serve
from tests.tiny import VOCAB

pytestmark = pytest.mark.slow

ONE_OF_EACH = (
    "bloom",
    "gemma2",
    "gemma4_e2b",
    "gemma4_text",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "olmo2",
    "opt_350m",
    "qwen2_moe",
)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_engine_s_logits_are_the_reference_s(name: str, zoo: Callable[[str], Path]) -> None:
    engine = load(zoo(name), at_once=True, max_batch_size=2, max_batch_prefill_tokens=32, max_total_tokens=64)
    ids = prompt(40)
    before = engine.stats().steps
    answer = alone(engine, ask(1, ids, max_tokens=8, prompt_logprobs=True, logprobs=VOCAB))
    assert engine.stats().steps >= before + 2 + 7  # two chunks, the second giving the first token
    expected = reference(zoo(name), [*ids, *answer.ids])
    np.testing.assert_allclose(logprob_rows([*answer.prompt[1:], *answer.tokens]), expected[:-1], atol=1e-3)
    assert answer.ids == expected[len(ids) - 1 : -1].argmax(-1).tolist()

    serve(engine, [ask(2, ids[:33], max_tokens=1)])
    again = serve(engine, [ask(3, ids, max_tokens=8, logprobs=VOCAB)])[3]
    assert (again.cached_tokens, again.ids) == (32, answer.ids)
    np.testing.assert_allclose(logprob_rows(again.tokens), expected[len(ids) - 1 : -1], atol=1e-3)


def reference(directory: Path, ids: list[int]) -> np.ndarray:
    return torch.from_numpy(zoo_logits(directory, ids)).log_softmax(-1).numpy()
