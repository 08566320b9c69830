"""Nothing is computed behind the last layer's keys and values of tokens whose hidden states no one reads, on a CPU."""

import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from tests.jaxengine.engines import Answer, ask, prompt, serve

LENGTH = 40


def computed(engine: Engine) -> list[int]:
    """The tokens of the last step of prompts that came through the last layer: what it leaves out is 0. The first is
    always among them, for padding.
    """
    return np.flatnonzero(np.asarray(engine.runner.state.all_hidden).any(axis=1)).tolist()


def first_token(engine: Engine, seed: int, **params: object) -> Answer:
    return serve(engine, [ask(0, prompt(LENGTH, seed=seed), max_tokens=1, logprobs=3, **params)])[0]


def test_of_a_prompt_only_the_last_token_comes_through_the_last_layer(wide: Engine) -> None:
    first_token(wide, seed=71)
    assert computed(wide) == [0, LENGTH - 1]


def test_of_prompts_of_one_step_each_last_token_does(wide: Engine) -> None:
    serve(wide, [ask(i, prompt(LENGTH + i, seed=72 + i), max_tokens=1) for i in range(3)])
    assert computed(wide) == [0, LENGTH - 1, 2 * LENGTH, 3 * LENGTH + 2]


def test_all_do_if_one_prompt_of_the_step_wants_its_logprobs(wide: Engine) -> None:
    wanting = [ask(i, prompt(LENGTH, seed=75 + i), max_tokens=1, prompt_logprobs=i > 0) for i in range(2)]
    answers = serve(wide, wanting)
    assert computed(wide)[: 2 * LENGTH] == [*range(2 * LENGTH)]
    assert len(answers[1].prompt) == LENGTH and not answers[0].prompt


@pytest.mark.parametrize("seed", [77, 78, 79])
def test_a_token_is_the_same_whether_all_are_computed_or_its_own_alone(wide: Engine, seed: int) -> None:
    alone, among_all = first_token(wide, seed), first_token(wide, seed, prompt_logprobs=True)
    (token,), (other,) = alone.tokens, among_all.tokens
    assert token.id == other.id
    np.testing.assert_allclose(token.logprob, other.logprob, atol=1e-5)
