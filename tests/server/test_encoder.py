"""A model with an encoder behind the whole server: TGI's conventions for such models, and transformers' output."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.families.seq2seq import seq2seq_logits, start_of, write_seq2seq
from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import Server, serving
from tests.tiny import EOS, tokenizer

pytestmark = pytest.mark.slow

NAME = "flan_t5"
TEXT = "where does the river end? in the sea, as rivers do."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seq2seq(tmp_path_factory.mktemp("encoder"), NAME)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = ("--max-total-tokens=128", "--enable-prefill-logprobs")
    with serving(tmp_path_factory.mktemp("server"), f"--model-id={model}", *TINY_OPTIONS, *limits) as server:
        server.wait_ready()
        yield server


def greedy(model: Path, source: list[int], count: int) -> list[int]:
    """What transformers generates."""
    ids = [start_of(model.name)]
    while len(ids) <= count and EOS not in ids[1:]:
        ids.append(int(np.argmax(seq2seq_logits(model, source, ids)[-1])))
    return ids[1:]


def test_generate_answers_as_transformers_with_the_start_token_as_its_only_prefill(server: Server, model: Path) -> None:
    source = tokenizer()(TEXT).input_ids
    asked = {"max_new_tokens": 12, "details": True, "decoder_input_details": True}
    answer = httpx.post(server.url + "/generate", json={"inputs": TEXT, "parameters": asked}, timeout=PATIENCE).json()
    ids = [token["id"] for token in answer["details"]["tokens"]]
    assert ids == greedy(model, source, 12)
    assert answer["generated_text"] == tokenizer().decode(ids, skip_special_tokens=True)
    assert answer["details"]["prefill"] == [{"id": start_of(NAME), "text": "<pad>", "logprob": None}]


def test_a_truncated_prompt_is_its_end(server: Server, model: Path) -> None:
    source = tokenizer()(TEXT).input_ids[-7:]
    asked = {"max_new_tokens": 5, "details": True, "truncate": 7}
    answer = httpx.post(server.url + "/generate", json={"inputs": TEXT, "parameters": asked}, timeout=PATIENCE).json()
    assert [token["id"] for token in answer["details"]["tokens"]] == greedy(model, source, 5)


def test_completions_of_several_prompts_are_those_of_each(server: Server, model: Path) -> None:
    body = {"prompt": [TEXT, TEXT[:20]], "max_tokens": 6, "temperature": 0}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=PATIENCE).json()
    expected = [greedy(model, tokenizer()(text).input_ids, 6) for text in body["prompt"]]
    texts = [tokenizer().decode(ids, skip_special_tokens=True) for ids in expected]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == sum(len(tokenizer()(text).input_ids) for text in body["prompt"])


def test_bart_answers_as_transformers_and_says_how_many_positions_there_are(tmp_path: Path) -> None:
    model = write_seq2seq(tmp_path, "bart", seed=4)  # of which the answer is no one token again and again
    source = tokenizer()(TEXT).input_ids
    with serving(tmp_path, f"--model-id={model}", *TINY_OPTIONS) as server:
        server.wait_ready()
        asked = {"inputs": TEXT, "parameters": {"max_new_tokens": 12, "details": True}}
        answer = httpx.post(server.url + "/generate", json=asked, timeout=60).json()
        assert [token["id"] for token in answer["details"]["tokens"]] == greedy(model, source, 12)
        body = {"prompt": TEXT, "max_tokens": 97 - len(source)}
        refused = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    assert refused.status_code == 400
    assert "maximum context length is 96 tokens, but 97 were requested" in refused.json()["error"]["message"]
