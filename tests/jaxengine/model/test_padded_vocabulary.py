"""Rows of the vocabulary behind the tokenizer's last id are never an answer, however likely the weights make them."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine.engine.engine import Engine
from tests.jaxengine.engines import alone, ask, load, prompt, serve
from tests.tiny import VOCAB, reference_logits, write_tiny

pytestmark = pytest.mark.slow

ROWS = VOCAB + 64


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose padding rows come in opposite pairs, so that one of them always has the largest logit."""
    directory = write_tiny(tmp_path_factory.mktemp("padded"), "llama", vocab_size=ROWS)
    tensors = load_file(directory / "model.safetensors")
    head = tensors["lm_head.weight"]
    head[VOCAB : VOCAB + 32] = 20 * head[:32]
    head[VOCAB + 32 :] = -20 * head[:32]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def engine(directory: Path) -> Engine:
    return load(directory, max_batch_size=2)


def test_the_engine_offers_the_tokenizer_s_ids(engine: Engine) -> None:
    assert engine.description.vocab_size == VOCAB


def test_greedy_ids_are_the_best_tokens(engine: Engine, directory: Path) -> None:
    ids = prompt(12)
    answer = alone(engine, ask(1, ids, max_tokens=8))
    logits = reference_logits(directory, [*ids, *answer.ids])[len(ids) - 1 : -1]
    assert (logits.argmax(-1) >= VOCAB).all()  # without a mask, padding would win
    assert answer.ids == logits[:, :VOCAB].argmax(-1).tolist()


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 100.0}, {"top_k": 5, "temperature": 2.0}])
def test_drawn_ids_and_alternatives_are_tokens(engine: Engine, params: dict[str, float]) -> None:
    answer = serve(engine, [ask(2, prompt(9), max_tokens=40, logprobs=20, **params)])[2]
    assert max(answer.ids) < VOCAB
    assert all(id < VOCAB for token in answer.tokens for id, _ in token.top)
    assert all(np.isfinite(token.logprob) for token in answer.tokens)


def test_logprobs_are_over_the_tokens_alone(engine: Engine, directory: Path) -> None:
    ids = prompt(10, seed=3)
    answer = alone(engine, ask(3, ids, max_tokens=4, logprobs=VOCAB, prompt_logprobs=True))
    expected = reference_logits(directory, [*ids, *answer.ids])[len(ids) - 1 : -1, :VOCAB]
    expected = expected - np.log(np.exp(expected.astype(np.float64)).sum(-1, keepdims=True))
    got = [token.logprob for token in answer.tokens]
    np.testing.assert_allclose(got, expected[np.arange(4), answer.ids], atol=1e-3)


@pytest.mark.parametrize("params", [{"logit_bias": {VOCAB: 100.0}}, {"stop_token_ids": [VOCAB + 3]}])
def test_padding_cannot_be_asked_for(engine: Engine, params: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"has the id {VOCAB}|has the id {VOCAB + 3}"):
        engine.check(ask(4, prompt(4), max_tokens=1, **params))
