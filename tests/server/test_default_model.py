"""The default model through the whole server is the model transformers computes, token for token.

`tests/goldens/smollm2_golden.json` is what transformers answers in float32 with the same GGUF's weights.
"""

import asyncio
import itertools
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.processes import PATIENCE, ROOT
from tests.server.streams import Outcome, stream
from tests.servers import Server

pytestmark = pytest.mark.slow

GOLDENS: list[dict[str, Any]] = json.loads((ROOT / "tests/goldens/smollm2_golden.json").read_text())["runs"]
NEW_TOKENS = 40
each_golden = pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden["user"])


@cache
def tokenizer() -> Tokenizer:
    """The cached model's, read by the library itself."""
    from convert.source import open_model

    return Tokenizer.from_file(str(Path(open_model(None).directory) / "tokenizer.json"))


def token_bytes(ids: list[int]) -> list[bytes]:
    return [tokenizer().decode([id], skip_special_tokens=False).encode() for id in ids]


def chat(golden: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": golden["user"]}]
    return {"messages": messages, "max_tokens": NEW_TOKENS, "temperature": 0, "logprobs": True, **fields}


def spelled(choice: dict[str, Any]) -> list[bytes]:
    return [bytes(token["bytes"]) for token in (choice["logprobs"] or {"content": []})["content"]]


@each_golden
def test_a_chat_answer_is_the_golden_one_token_for_token(smollm2: Server, golden: dict[str, Any]) -> None:
    answer = httpx.post(smollm2.url + "/v1/chat/completions", json=chat(golden), timeout=PATIENCE).json()
    (choice,) = answer["choices"]
    assert spelled(choice) == token_bytes(golden["greedy_ids"])
    assert choice["message"]["content"] == golden["text"]
    assert choice["finish_reason"] == ("stop" if golden["stopped_at_eos"] else "length")
    assert answer["usage"]["prompt_tokens"] == len(golden["prompt_ids"])
    assert answer["usage"]["completion_tokens"] == len(golden["greedy_ids"])


async def test_chat_streams_at_once_are_the_golden_ones_token_for_token(smollm2: Server) -> None:
    async with httpx.AsyncClient(base_url=smollm2.url, timeout=PATIENCE) as http:
        fields = {"stream": True, "stream_options": {"include_usage": True}}
        posts = [http.post("/v1/chat/completions", json=chat(golden, **fields)) for golden in GOLDENS]
        answers = await asyncio.gather(*posts)
    for golden, answer in zip(GOLDENS, answers, strict=True):
        *lines, done = answer.text.strip().split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert done == "data: [DONE]"
        assert [token for choice in choices for token in spelled(choice)] == token_bytes(golden["greedy_ids"])
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == golden["text"]
        assert choices[-1]["finish_reason"] == ("stop" if golden["stopped_at_eos"] else "length")
        assert chunks[-1]["usage"]["completion_tokens"] == len(golden["greedy_ids"])


@each_golden
def test_generate_on_the_templated_prompt_gives_the_golden_ids(smollm2: Server, golden: dict[str, Any]) -> None:
    body = {"inputs": golden["prompt"], "parameters": {"max_new_tokens": NEW_TOKENS, "details": True}}
    answer = httpx.post(smollm2.url + "/generate", json=body, timeout=PATIENCE)
    details = answer.json()["details"]
    assert [token["id"] for token in details["tokens"]] == golden["greedy_ids"]
    assert answer.json()["generated_text"] == golden["text"]
    assert details["finish_reason"] == ("eos_token" if golden["stopped_at_eos"] else "length")
    assert answer.headers["x-prompt-tokens"] == str(len(golden["prompt_ids"]))


async def test_generate_streams_at_once_give_the_golden_ids(smollm2: Server) -> None:
    streams = [stream(smollm2.url, golden["prompt"], NEW_TOKENS) for golden in GOLDENS]
    outcomes = await asyncio.gather(*streams)
    assert outcomes == [Outcome(tuple(golden["greedy_ids"]), None) for golden in GOLDENS]


@each_golden
def test_the_likeliest_first_tokens_lie_as_far_apart_as_transformers_says(
    smollm2: Server, golden: dict[str, Any]
) -> None:
    body = chat(golden, max_tokens=1, top_logprobs=5)
    answer = httpx.post(smollm2.url + "/v1/chat/completions", json=body, timeout=PATIENCE).json()
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    ids, logits = zip(*golden["first_step_top5"], strict=True)
    assert [bytes(each["bytes"]) for each in top] == token_bytes(list(ids))
    distances = [top[0]["logprob"] - each["logprob"] for each in top]
    assert distances == pytest.approx([logits[0] - logit for logit in logits], abs=2e-3)


def test_a_client_that_goes_away_stops_its_request(smollm2: Server) -> None:
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 2000}}
    with httpx.stream("POST", smollm2.url + "/generate_stream", json=body, timeout=PATIENCE) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert len([*itertools.islice(lines, 5)]) == 5
    left = smollm2.gauges()['textgen_generated_tokens_total{engine="0"}']
    deadline = time.monotonic() + PATIENCE
    while (gauges := smollm2.gauges())["tgi_batch_current_size"]:
        assert time.monotonic() < deadline, "the request still runs"
    assert gauges['textgen_kv_pages{engine="0",state="used"}'] == 0
    assert gauges['textgen_generated_tokens_total{engine="0"}'] - left < 100  # 2 on an idle machine
