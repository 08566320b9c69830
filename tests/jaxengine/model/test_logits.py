"""The decoder computes what transformers computes, for every kind of Llama checkpoint and however it is scheduled.

Logits are compared through log-probabilities of the whole vocabulary, in f32, within 1e-3.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxengine.engine.engine import Engine
from tests.jaxengine.engines import Answer, EngineOf, alone, ask, logprob_rows, prompt, serve
from tests.tiny import TINY, VOCAB, load_reference, reference_logits

STATIC = sorted(set(TINY) - {"llama_dynamic"})  # rotary frequencies that do not depend on the length of the text
BUDGET = 64

Tiny = Callable[[str], Path]


@pytest.fixture
def engine(request: pytest.FixtureRequest, engine_of: EngineOf) -> Engine:
    """A pool of the smallest size, one longest request, so that three requests cannot finish without preemption."""
    return engine_of(request.param, max_batch_total_tokens=128, max_batch_prefill_tokens=BUDGET, max_total_tokens=128)


QUICK = ("llama2_gqa", "llama3")
every_checkpoint = pytest.mark.parametrize(
    "name, engine",
    [pytest.param(name, name, marks=() if name in QUICK else pytest.mark.slow) for name in STATIC],
    indirect=["engine"],
)


def reference_rows(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).log_softmax(-1).numpy()


def assert_prompt_as_reference(answer: Answer, directory: Path, ids: list[int]) -> None:
    assert [token.id for token in answer.prompt] == ids
    assert np.isnan(answer.prompt[0].logprob)
    ours = logprob_rows(answer.prompt[1:])
    np.testing.assert_allclose(ours, reference_rows(reference_logits(directory, ids))[:-1], atol=1e-3)
    own = [token.logprob for token in answer.prompt[1:]]
    np.testing.assert_allclose(own, ours[np.arange(len(own)), ids[1:]], atol=1e-6)
    higher, as_high = (1 + (ours > np.array(own)[:, None] + slack).sum(axis=1) for slack in (1e-6, -1e-6))
    ranks = [token.rank for token in answer.prompt]
    assert ranks[0] == 0 and (higher <= ranks[1:]).all() and (ranks[1:] <= as_high).all()


def assert_generated_as_reference(answer: Answer, directory: Path, ids: list[int]) -> None:
    reference = reference_rows(reference_logits(directory, [*ids, *answer.ids]))[len(ids) - 1 : -1]
    np.testing.assert_allclose(logprob_rows(answer.tokens), reference, atol=1e-3)
    assert answer.ids == reference.argmax(-1).tolist()


@every_checkpoint
def test_a_prompt_in_one_step_has_the_reference_logits(engine: Engine, tiny: Tiny, name: str) -> None:
    ids = prompt(60)
    before = engine.stats().steps
    answer = alone(engine, ask(1, ids, max_tokens=1, prompt_logprobs=True, logprobs=VOCAB))
    assert engine.stats().steps == before + 1
    assert_prompt_as_reference(answer, tiny(name), ids)


@every_checkpoint
def test_a_prompt_in_chunks_has_the_reference_logits(engine: Engine, tiny: Tiny, name: str) -> None:
    ids = prompt(110)
    before = engine.stats().steps
    answer = alone(engine, ask(1, ids, max_tokens=1, prompt_logprobs=True, logprobs=VOCAB))
    assert engine.stats().steps == before + 2
    assert_prompt_as_reference(answer, tiny(name), ids)


@every_checkpoint
def test_tokens_behind_a_cached_prefix_have_the_reference_logits(engine: Engine, tiny: Tiny, name: str) -> None:
    shared = prompt(50, seed=1)
    serve(engine, [ask(1, shared, max_tokens=1, salt=name.encode())])
    ids = [*shared[:40], *prompt(20, seed=2)[1:]]
    answer = serve(engine, [ask(2, ids, max_tokens=12, logprobs=VOCAB, salt=name.encode())])[2]
    assert answer.cached_tokens == 32
    assert_generated_as_reference(answer, tiny(name), ids)


@every_checkpoint
def test_tokens_after_a_preemption_have_the_reference_logits(engine: Engine, tiny: Tiny, name: str) -> None:
    prompts = {number: prompt(30, seed=number) for number in range(3)}
    before = engine.stats().preemptions
    answers = serve(engine, [ask(n, ids, max_tokens=40, logprobs=VOCAB) for n, ids in prompts.items()])
    assert engine.stats().preemptions > before
    for number, ids in prompts.items():
        assert_generated_as_reference(answers[number], tiny(name), ids)


@every_checkpoint
def test_greedy_ids_of_neighbours_are_the_reference_s(engine: Engine, tiny: Tiny, name: str) -> None:
    prompts = {number: prompt(length, seed=number) for number, length in enumerate((1, 7, 16, 33))}
    answers = serve(engine, [ask(n, ids, max_tokens=12) for n, ids in prompts.items()])
    for number, ids in prompts.items():
        after = reference_logits(tiny(name), [*ids, *answers[number].ids[:-1]])[len(ids) - 1 :]
        assert answers[number].ids == after.argmax(-1).tolist()


# --- dynamic rotary scaling: the frequencies depend on how long the text is ---------------------------------------


@pytest.fixture
def dynamic(engine_of: EngineOf) -> Engine:
    """Trained for 16 positions, stretched to 32."""
    return engine_of("llama_dynamic", max_batch_total_tokens=64, max_batch_prefill_tokens=32)


def cached_greedy(directory: Path, ids: list[int], new_tokens: int) -> tuple[list[int], np.ndarray]:
    """What transformers' own generation with a cache gives: ids and log-probabilities [new_tokens, V]."""
    out = load_reference(directory).generate(
        torch.tensor([ids]),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences[0, len(ids) :].tolist(), torch.stack(out.logits)[:, 0].log_softmax(-1).numpy()


@pytest.mark.parametrize("length", [12, 31])
def test_dynamic_rope_stretches_by_the_length_of_the_prompt(dynamic: Engine, tiny: Tiny, length: int) -> None:
    ids = prompt(length)
    answer = alone(dynamic, ask(1, ids, max_tokens=1, prompt_logprobs=True, logprobs=VOCAB))
    assert_prompt_as_reference(answer, tiny("llama_dynamic"), ids)


@pytest.mark.parametrize("length", [8, 14, 20])
def test_dynamic_rope_stretches_a_generated_token_by_its_own_position(dynamic: Engine, tiny: Tiny, length: int) -> None:
    ids = prompt(length, seed=length)
    answer = alone(dynamic, ask(1, ids, max_tokens=12, logprobs=VOCAB))
    expected, rows = cached_greedy(tiny("llama_dynamic"), ids, 12)
    assert answer.ids == expected
    np.testing.assert_allclose(logprob_rows(answer.tokens), rows, atol=1e-3)


def test_dynamic_rope_gives_the_same_tokens_behind_a_prefix_that_others_computed(dynamic: Engine) -> None:
    shared = prompt(18, seed=3)
    request = ask(2, [*shared, *prompt(9, seed=4)[1:]], max_tokens=4, logprobs=VOCAB)
    expected = alone(dynamic, request)
    serve(dynamic, [ask(1, shared, max_tokens=1)])
    answer = serve(dynamic, [request])[2]
    np.testing.assert_allclose(logprob_rows(answer.tokens), logprob_rows(expected.tokens), atol=1e-3)
