"""Options of `/v1` behind a whole server, as vLLM's users set them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxengine.rpc.limits import MAX_ALTERNATIVES
from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import Server, serving
from tests.tiny import tokenizer

pytestmark = pytest.mark.slow

MANY = 50


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_may_list_the_logprobs_of_the_whole_vocabulary(whole: Server, stream: bool) -> None:
    """They are the model's whole distribution, whether asked for by -1 or by the size of the vocabulary."""
    for asked in (-1, len(tokenizer())):
        body = {"prompt": [5, 6], "max_tokens": 2, "temperature": 1, "seed": 1, "ignore_eos": True, "stream": stream}
        fields = {"logprobs": asked, "return_tokens_as_token_ids": True}
        answer = httpx.post(f"{whole.url}/v1/completions", json={**body, **fields}, timeout=PATIENCE)
        listed = [each for choice in choices(answer, stream) for each in choice["logprobs"]["top_logprobs"]]
        assert len(listed) == 2
        for each in listed:
            assert math.fsum(map(math.exp, each.values())) == pytest.approx(1, abs=1e-4)


def test_the_logprobs_of_a_prompt_are_bounded(whole: Server) -> None:
    body = {"prompt": [5, 6], "max_tokens": 1, "prompt_logprobs": MAX_ALTERNATIVES + 1}
    refused = httpx.post(f"{whole.url}/v1/completions", json=body, timeout=PATIENCE)
    assert (refused.status_code, f"{MAX_ALTERNATIVES}" in refused.text) == (400, True)


def choices(answer: httpx.Response, stream: bool) -> list[Any]:
    if not stream:
        found: list[Any] = answer.json()["choices"]
        return found
    chunks = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line not in ("", "data: [DONE]")]
    return [choice for chunk in chunks for choice in json.loads(chunk)["choices"] if choice["logprobs"]]


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = (f"--model-id={tiny_model}", *TINY_OPTIONS, "--max-logprobs=-1", "--max-total-tokens=64")
    with serving(tmp_path_factory.mktemp("whole"), *options) as server:
        server.wait_ready()
        yield server


def test_names_and_the_number_of_logprobs_are_those_of_the_options(tiny_model: Path, tmp_path: Path) -> None:
    options = ("--served-model-name", "mine", "other", f"--max-logprobs={MANY}", "--max-total-tokens=64")
    with serving(tmp_path, f"--model-id={tiny_model}", *TINY_OPTIONS, *options) as server:
        server.wait_ready()
        for temperature in (0, 1):
            body = {"prompt": [5, 6], "max_tokens": 2, "temperature": temperature, "model": "other"}
            fields = {"logprobs": MANY, "prompt_logprobs": MANY, "return_tokens_as_token_ids": True}
            answer = httpx.post(f"{server.url}/v1/completions", json={**body, **fields}, timeout=PATIENCE).json()
            [choice] = answer["choices"]
            assert answer["model"] == "mine"
            listed = [*choice["logprobs"]["top_logprobs"], choice["prompt_logprobs"][1]]
            assert len(listed) == 3 and all(len(each) in (MANY, MANY + 1) for each in listed)
        beyond = httpx.post(f"{server.url}/v1/completions", json={**body, "logprobs": MANY + 1}, timeout=PATIENCE)
        assert (beyond.status_code, f"at most {MANY}" in beyond.text) == (400, True)
