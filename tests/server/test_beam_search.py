"""Beam search through the whole server: what transformers finds, beside streams, given up and refused by name."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxengine.request.beam_search import BeamSearch
from tests.clients.environments import run_script
from tests.jaxengine.beam_references import Found, searched
from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import Server, serving
from tests.tiny import EOS, load_reference, tokenizer, write_tiny

pytestmark = pytest.mark.slow

TEXT = "where does the river end?"
NEW = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("beams"), "llama2_gqa")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), f"--model-id={model}", *TINY_OPTIONS) as server:
        server.wait_ready()
        yield server


def found(model: Path, ids: list[int], **search: Any) -> Found:
    return searched(load_reference(model), ids, BeamSearch(**search), NEW, [EOS])


def complete(server: Server, **fields: Any) -> httpx.Response:
    body = {"prompt": TEXT, "max_tokens": NEW, "use_beam_search": True, **fields}
    return httpx.post(server.url + "/v1/completions", json=body, timeout=PATIENCE)


def texts(found: Found) -> list[str]:
    return [tokenizer().decode(ids, skip_special_tokens=True) for ids, _ in found]


def test_openais_sdk_gets_the_texts_of_transformers(server: Server, model: Path) -> None:
    answer = run_script("modern", "openai_beams", url=server.url, prompt=TEXT, max_tokens=NEW)
    expected = found(model, tokenizer()(TEXT).input_ids, width=4, answers=2, early_stopping="never")
    assert answer["texts"] == texts(expected)
    assert [sum(logprobs) / len(logprobs) for logprobs in answer["logprobs"]] == pytest.approx(
        [score for _, score in expected], rel=1e-4
    )
    chat = [{"role": "user", "content": TEXT}]
    ids = tokenizer().apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    expected = found(model, ids, width=3, early_stopping="never")
    assert answer["messages"] == texts(expected)
    assert answer["refused"] == ["stream", "temperature", "stop"]


@pytest.mark.parametrize("early_stopping", [True, False])
def test_several_prompts_are_searched_at_once(server: Server, model: Path, early_stopping: bool) -> None:
    prompts = [TEXT, "def add(a"]
    answer = complete(server, prompt=prompts, n=2, length_penalty=0.5, early_stopping=early_stopping).json()
    wanted = {"width": 2, "length_penalty": 0.5, "early_stopping": early_stopping}
    expected = [found(model, tokenizer()(prompt).input_ids, **wanted) for prompt in prompts]
    assert [choice["text"] for choice in answer["choices"]] == [text for each in expected for text in texts(each)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    ends = ["stop" if ids[-1] == EOS else "length" for each in expected for ids, _ in each]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ends
    assert answer["usage"]["completion_tokens"] == sum(len(ids) for each in expected for ids, _ in each)


def test_streams_go_on_beside_searches_and_say_the_same(server: Server) -> None:
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 40, "details": True}}
    alone = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).json()
    answers: list[httpx.Response] = []
    searches = [threading.Thread(target=lambda: answers.append(complete(server, n=3))) for _ in range(3)]
    for each in searches:
        each.start()
    beside = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).json()
    for each in searches:
        each.join()
    assert beside["generated_text"] == alone["generated_text"]
    choices = [[choice["text"] for choice in answer.json()["choices"]] for answer in answers]
    assert len(choices) == 3 and choices[0] == choices[1] == choices[2]


def test_a_client_that_leaves_takes_its_search_with_it(server: Server) -> None:
    with contextlib.suppress(httpx.ReadTimeout):
        body = {"prompt": TEXT, "max_tokens": 100, "n": 4, "use_beam_search": True, "ignore_eos": True}
        httpx.post(server.url + "/v1/completions", json=body, timeout=0.05)
    assert complete(server, n=4).status_code == 200
    gauges = server.gauges()
    assert (
        gauges['textgen_step_failures_total{engine="0"}']
        == gauges['textgen_compiles_after_warmup_total{engine="0"}']
        == 0
    )
    assert [value for name, value in gauges.items() if name.startswith("vllm:num_requests_running")] == [0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 8, "stop_token_ids": [*range(100, 113)]}, "stop_token_ids"),
        ({"n": 3, "allowed_token_ids": [5, 6]}, "fewer than 3 beams"),
        ({"n": 2, "response_format": {"type": "json_object"}}, "use_beam_search"),
    ],
)
def test_what_cannot_be_searched_is_a_400(server: Server, fields: dict[str, Any], message: str) -> None:
    answer = complete(server, **fields)
    assert answer.status_code == 400 and message in answer.text
