"""Refusals of `/v1`: each names the field, the given value and what is allowed."""

import re
import time
from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.routes.openai.schemas import ChatRequest, Common, CompletionRequest
from gateway.routes.openai.unsupported import HINTS, HINTS_WITHIN, OUR_NAMES, UNSUPPORTED
from gateway.routes.openai.validation import refuse_unknown_ids
from tests.gateway.fixtures import serve
from tests.processes import ROOT

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "lo"}]}
TEXT: dict[str, Any] = {"prompt": "lo"}

BOTH: list[tuple[dict[str, Any], list[str]]] = [
    ({"temperature": 2.5}, ["temperature", "2.5", "at most 2"]),
    ({"temperature": -0.1}, ["temperature", "-0.1", "at least 0"]),
    ({"temperature": "1"}, ["temperature: must be a number"]),
    ({"n": 1.5}, ["n: must be a whole number (given 1.5)"]),
    ({"stop": 5}, ["stop: must be a string or a list (given 5)"]),
    ({"stop": [5]}, ["stop[0]: must be a string (given 5)"]),
    ({"top_p": 1.5}, ["top_p", "1.5", "1"]),
    ({"top_k": -2}, ["top_k", "-2", "-1"]),
    ({"min_p": 2}, ["min_p", "2", "1"]),
    ({"typical_p": 0}, ["typical_p", "0"]),
    ({"repetition_penalty": 0}, ["repetition_penalty", "0"]),
    ({"frequency_penalty": 3}, ["frequency_penalty", "3", "2"]),
    ({"presence_penalty": -3}, ["presence_penalty", "-3", "-2"]),
    ({"n": 0}, ["n", "0", "1"]),
    ({"n": 9}, ["n", "9", "8"]),
    ({"allowed_token_ids": []}, ["allowed_token_ids", "empty"]),
    ({"allowed_token_ids": [320]}, ["allowed_token_ids", "320", "319"]),
    ({"allowed_token_ids": [1] * 301}, ["allowed_token_ids", "300", "301"]),
    ({"allowed_token_ids": [0], "min_tokens": 1}, ["allowed_token_ids", "min_tokens"]),
    ({"bad_words": [""]}, ["bad_words[0]", "empty"]),
    ({"bad_words": ["a"] * 129}, ["bad_words", "128", "129"]),
    ({"bad_words": ["a" * 65]}, ["bad_words[0]", "64", "65"]),
    ({"bad_words": ["the stop " * 3]}, ["bad_words", "8 tokens", "one has"]),
    ({"bad_words": [chr(33 + i) for i in range(80)]}, ["bad_words", "160 sequences", "128"]),
    ({"bad_words": ["a"], "allowed_token_ids": [5]}, ["bad_words", "allowed_token_ids"]),
    ({"prompt_logprobs": 21}, ["prompt_logprobs", "21", "20"]),
    ({"prompt_logprobs": 1, "stream": True}, ["prompt_logprobs", "streaming"]),
    ({"prompt_logprobs": 0, "stream": True}, ["prompt_logprobs", "streaming"]),
    ({"seed": 2**63}, ["seed"]),
    ({"stop": ""}, ["stop"]),
    ({"stop": ["a"] * 5}, ["stop", "5", "4", "--max-stop-sequences"]),
    ({"stop": "a" * 257}, ["stop", "256"]),
    ({"stop_token_ids": [320]}, ["stop_token_ids", "320", "319"]),
    ({"stop_token_ids": [1] * 65}, ["stop_token_ids", "64", "65"]),
    ({"logit_bias": {"320": 1}}, ["logit_bias", "320", "319"]),
    ({"logit_bias": {"one": 1, "5": 2, "two": 1}}, ["logit_bias: every key", "plain digits, not one, two"]),
    ({"logit_bias": {"5": 1, "05": 2}}, ["logit_bias", "plain digits, not 05"]),
    ({"logit_bias": {"1": 101}}, ["logit_bias", "token 1", "100"]),
    ({"logit_bias": {str(i): 1 for i in range(301)}}, ["logit_bias", "300"]),
    ({"min_tokens": 5, "max_tokens": 4}, ["min_tokens", "5", "4"]),
    ({"max_tokens": 65}, ["max_tokens 65", "64"]),
    ({"max_tokens": 63}, ["max_tokens 63", "64"]),
    ({"max_tokens": -1}, ["max_tokens", "-1"]),
    ({"stream": 1}, ["stream"]),
    ({"stream_options": {}}, ["stream_options", "stream"]),
    ({"truncate_prompt_tokens": 0}, ["truncate_prompt_tokens"]),
    ({"truncation_side": "middle"}, ["truncation_side: must be 'left' or 'right'"]),
    ({"request_id": "a b"}, ["request_id", "64"]),
    ({"cache_salt": ""}, ["cache_salt"]),
    ({"cache_salt": "a" * 1025}, ["cache_salt", "1024", "1025"]),
    ({"priority": 2**31}, ["priority"]),
    ({"model": 3}, ["model"]),
]
CHAT_ONLY: list[tuple[dict[str, Any], list[str]]] = [
    ({"messages": []}, ["messages"]),
    ({"messages": None}, ["messages"]),
    ({"messages": [{"role": "user"}]}, ["messages[0]", "content"]),
    ({"messages": [{"content": "lo"}]}, ["messages[0].role"]),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, ["content[0]", "text"]),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        ["image_url.url: is required"],
    ),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, ["messages[0]", "audio"]),
    ({"messages": [{"role": "system", "content": "lo", "tools": [{}]}]}, ["messages[0]", "tools"]),
    ({"messages": [{"role": "user", "content": "lo", "task": "query"}]}, ["messages[0]", "task"]),
    ({"messages": [{"role": "assistant", "content": "lo", "prefix": True}]}, ["messages[0]", "prefix"]),
    ({"messages": CHAT["messages"] * 1025}, ["messages", "1024"]),
    ({"logprobs": 1}, ["logprobs"]),
    ({"top_logprobs": 1}, ["top_logprobs", "logprobs"]),
    ({"logprobs": True, "top_logprobs": 21}, ["top_logprobs", "21", "20"]),
    ({"max_completion_tokens": 0}, ["max_completion_tokens", "0"]),
    ({"max_completion_tokens": 65, "max_tokens": 1}, ["max_completion_tokens 65", "64"]),
    ({"add_generation_prompt": True, "continue_final_message": True}, ["add_generation_prompt"]),
    ({"chat_template_kwargs": {"messages": []}}, ["chat_template_kwargs"]),
    ({"chat_template_kwargs": {"bos_token": "x"}}, ["chat_template_kwargs"]),
    ({"chat_template_kwargs": {"x": "y" * 20000}}, ["chat_template_kwargs", "16384"]),
    ({"chat_template": ""}, ["chat_template"]),
    ({"chat_template": "x" * 16385}, ["chat_template", "16384"]),
    ({"chat_template": "{% if %}"}, ["chat template"]),
    ({"documents": [{}] * 65}, ["documents", "64"]),
    ({"documents": [{"text": "x" * 262144}]}, ["documents", "262144"]),
]
TEXT_ONLY: list[tuple[dict[str, Any], list[str]]] = [
    ({"prompt": None}, ["prompt"]),
    ({"prompt": []}, ["prompt"]),
    ({"prompt": [[]]}, ["prompt"]),
    ({"prompt": ["lo", [1]]}, ["prompt"]),
    ({"prompt": [True]}, ["prompt"]),
    ({"prompt": [320]}, ["prompt", "320", "319"]),
    ({"prompt": [-1]}, ["prompt", "-1"]),
    ({"prompt": ["lo"] * 5}, ["prompt", "5", "4", "--max-client-batch-size"]),
    ({"prompt": "", "add_special_tokens": False}, ["prompt", "no tokens"]),
    ({"max_tokens": 0}, ["max_tokens", "echo"]),
    ({"logprobs": 21}, ["logprobs", "21", "20"]),
    ({"logprobs": True}, ["logprobs"]),
    ({"suffix": "x"}, ["suffix"]),
    ({"best_of": 1, "n": 2}, ["best_of", "1", "2"]),
    ({"best_of": 9}, ["best_of", "9", "8"]),
    ({"best_of": 2, "stream": True}, ["best_of", "streaming"]),
]
CASES = [
    *(("/v1/chat/completions", CHAT, *row) for row in BOTH + CHAT_ONLY),
    *(("/v1/completions", TEXT, *row) for row in BOTH + TEXT_ONLY),
]


@pytest.mark.parametrize(("path", "base", "fields", "parts"), CASES, ids=lambda value: str(value)[:40])
async def test_a_refusal_names_the_field_and_both_numbers(
    path: str, base: dict[str, Any], fields: dict[str, Any], parts: list[str]
) -> None:
    async with serve() as app:
        response = await app.post(path, {**base, **fields})
        assert response.status_code == 400
        error = response.json()["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert error["type"] == "invalid_request_error"
        assert all(part in error["message"] for part in parts), error["message"]
        assert response.headers["x-should-retry"] == "false"
        assert app.engine.requests == []


@pytest.mark.parametrize("name", UNSUPPORTED)
async def test_a_field_we_do_not_serve_is_refused_not_ignored(name: str) -> None:
    of_texts = name == "suffix" or name in ChatRequest.model_fields
    path, base = ("/v1/completions", TEXT) if of_texts else ("/v1/chat/completions", CHAT)
    async with serve() as app:
        response = await app.post(path, {**base, name: "something"})
        assert response.status_code == 400
        ours = f": use {OUR_NAMES[name]}" if name in OUR_NAMES else ""
        assert response.json()["error"]["message"] == f"{name} is not supported{ours}"
        for harmless in (None, *UNSUPPORTED[name]):
            assert (await app.post(path, {**base, name: harmless})).status_code == 200


@pytest.mark.parametrize(
    ("path", "base", "name"),
    [
        *(("/v1/chat/completions", CHAT, name) for name in ChatRequest.model_fields if name != "messages"),
        *(("/v1/completions", TEXT, name) for name in CompletionRequest.model_fields if name != "prompts"),
    ],
)
async def test_null_means_absent(path: str, base: dict[str, Any], name: str) -> None:
    async with serve() as app:
        assert (await app.post(path, {**base, name: None})).status_code == 200


def documented() -> dict[str, set[str]]:
    """The names in each row of the page's table of fields."""
    section = (ROOT / "docs/clients.md").read_text().split("## Fields of `/v1`")[1].split("##")[0]
    rows = (line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|"))
    return {row[0]: set(re.findall(r"`([\w.]+)`", row[1])) for row in rows if len(row) == 2}


def test_the_page_lists_every_field() -> None:
    table = documented()
    both = table["both routes, OpenAI's"] | table["both routes, vLLM's"]
    both |= table["both routes, samplers of Aphrodite, llama.cpp and KoboldCpp"]
    assert both == set(Common.model_fields)
    assert both | table["chat"] == set(ChatRequest.model_fields)
    assert both | table["completions"] == {f.alias or name for name, f in CompletionRequest.model_fields.items()}
    assert table["refused, unless they ask for nothing"] == set(UNSUPPORTED)
    assert table["hints, taken without effect"] == HINTS
    assert table["hints within fields"] == {f"{field}.{name}" for field in HINTS_WITHIN for name in HINTS_WITHIN[field]}


async def test_hints_and_fields_nobody_knows_are_ignored() -> None:
    async with serve() as app:
        extra = {name: [1] for name in (*HINTS, "whatever")}
        assert (await app.post("/v1/chat/completions", {**CHAT, **extra})).status_code == 200


async def test_a_prompt_too_long_says_so_in_openais_words() -> None:
    async with serve() as app:
        for path, body, param in (
            ("/v1/completions", {"prompt": "lo" * 64}, "prompt"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "lo" * 64}]}, "messages"),
            ("/v1/completions", {"prompt": "lo" * 10000}, "prompt"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "lo" * 10000}]}, "messages"),
        ):
            for stream in (False, True):
                response = await app.post(path, {**body, "stream": stream})
                assert response.status_code == 400
                error = response.json()["error"]
                assert (error["code"], error["param"]) == ("context_length_exceeded", param)
                assert "This model's maximum context length is" in error["message"]
        response = await app.post("/v1/completions", prompt="lo", max_tokens=63)
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert "65 were requested: 2 in prompt and max_tokens 63" in error["message"]
        response = await app.post("/v1/completions", prompt="lo" * 64)
        assert "maximum context length is 64 tokens" in response.json()["error"]["message"]
        assert "65 tokens" in response.json()["error"]["message"]


async def test_a_short_template_cannot_write_more_than_a_client_may_send() -> None:
    """However much fits the context: tokenising takes 300 bytes of memory for each character."""
    async with serve(max_total_tokens=100_000, payload_limit=1000) as app:
        for written, status in ((60_000, 200), (70_000, 400)):
            template = "{% for i in range(" + str(written // 10) + ") %}0123456789{% endfor %}"
            response = await app.post("/v1/chat/completions", {**CHAT, "chat_template": template, "max_tokens": 1})
            assert response.status_code == status
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("name", ["mock/model", "tgi", "dummy", "http://127.0.0.1:3000", "https://a.b/v1", "", None])
async def test_names_of_the_served_model(name: str | None) -> None:
    """A URL is what @huggingface/inference sends where it is given an endpoint and no model."""
    async with serve() as app:
        for path, base in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            answer = (await app.post(path, {**base, "model": name})).json()
            assert answer["model"] == "mock/model"


async def test_an_unknown_model_is_404() -> None:
    async with serve() as app:
        for path, base in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            response = await app.post(path, {**base, "model": "gpt-4o"})
            assert response.status_code == 404
            error = response.json()["error"]
            assert error["code"] == "model_not_found"
            assert error["message"] == "the model `gpt-4o` does not exist; this server serves `mock/model`"
            unlike_a_name = await app.post(path, {**base, "model": "canary\n" * 50})
            assert unlike_a_name.status_code == 404 and "canary" not in unlike_a_name.text


async def test_models_are_listed_and_looked_up() -> None:
    async with serve() as app:
        listed = (await app.http.get("/v1/models")).json()
        assert listed["object"] == "list"
        [card] = listed["data"]
        assert (card["id"], card["object"], card["owned_by"]) == ("mock/model", "model", "mock/model")
        assert (card["root"], card["parent"], card["max_model_len"]) == ("mock/model", None, 64)
        assert [each["object"] for each in card["permission"]] == ["model_permission"]
        assert isinstance(card["created"], int)
        assert (await app.http.get("/v1/models/mock/model")).json() == card
        missing = await app.http.get("/v1/models/other")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_more_choices_than_the_server_ever_runs_is_400() -> None:
    async with serve() as app:
        app.gateway.admission.max_requests = 4
        response = await app.post("/v1/completions", prompt="lo", n=5)
        assert response.status_code == 400
        assert re.search(r"5 sequences.*at most 4", response.json()["error"]["message"])


async def test_overload_is_429_and_worth_retrying() -> None:
    async with serve() as app:
        admission = app.gateway.admission
        with admission.request(admission.max_requests):
            for stream in (False, True):
                response = await app.post("/v1/chat/completions", {**CHAT, "stream": stream})
                assert response.status_code == 429
                assert response.headers["x-should-retry"] == "true"
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["error"]["code"] == "overloaded"


async def test_an_engine_that_is_not_ready_is_503_and_worth_retrying() -> None:
    async with serve() as app:
        app.engine.ready = False
        for path, base in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            response = await app.post(path, base)
            assert response.status_code == 503
            assert response.headers["x-should-retry"] == "true"
            assert response.headers["retry-after"] == "5"
            assert response.json()["error"]["code"] == "engine_unavailable"


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1.2_Z", True), ("a" * 64, True), ("a" * 65, False), ("a b", False), ("é", False)]
)
async def test_a_safe_request_id_is_kept(given: str, kept: bool) -> None:
    async with serve() as app:
        headers = {"x-request-id": given.encode()}
        for body in (CHAT, {"messages": []}):
            response = await app.http.post("/v1/chat/completions", json=body, headers=headers)
            assert (response.headers["x-request-id"] == given) is kept


LEAKS = ("Input should", "valid string", "pydantic", "Value error", "literal", "instance of")


async def test_one_wrong_value_is_one_complaint_in_our_words() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    cases = {
        "messages[0].content[0].image_url: this model reads no images, only text": {"messages": image},
        "messages[0].content: must be a string or a list (given 5)": {"messages": [{"role": "user", "content": 5}]},
        "n: must be at least 1 (given 0); temperature: must be a number": {**CHAT, "temperature": "1", "n": 0},
        "messages: is required": {},
    }
    async with serve() as app:
        for message, body in cases.items():
            assert (await app.post("/v1/chat/completions", body)).json()["error"]["message"] == message
        for path, base, fields, _ in CASES:
            text = (await app.post(path, {**base, **fields})).text
            assert not any(leak in text for leak in LEAKS), text


async def test_errors_are_few_and_never_repeat_the_body() -> None:
    async with serve() as app:
        body = {
            "messages": [{"role": 7, "content": "canary-" * 50, "name": 3}] * 500,
            "stop": {"canary": 1},
            "logit_bias": {"canary " * 3: 1},
        }
        response = await app.post("/v1/chat/completions", body)
        assert response.status_code == 400
        assert "canary" not in response.text
        assert len(response.content) < 4000


EVERYWHERE: dict[str, dict[str, Any]] = {
    "/v1/completions": {**TEXT, "stop": [1] * 100_000},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": [1] * 64}] * 1000},
    "/detokenize": {"tokens": [""] * 100_000},
    "/generate": {"inputs": "lo", "parameters": {"stop": [1] * 100_000}},
}


@pytest.mark.parametrize("path", EVERYWHERE)
async def test_a_body_that_is_wrong_everywhere_is_soon_refused(path: str) -> None:
    async with serve() as app:
        began = time.process_time()
        response = await app.post(path, EVERYWHERE[path])
        assert time.process_time() - began < 2
        assert response.status_code in (400, 422) and len(response.content) < 4000


@pytest.mark.parametrize("body", [b"[]", b"null", b'"lo"', b"5"])
async def test_a_body_that_is_no_object_is_told_so(body: bytes) -> None:
    async with serve() as app:
        message = (await app.raw("/v1/completions", body)).json()["error"]["message"]
        assert message.startswith("the body must be an object")


@pytest.mark.parametrize("id", [-1, 320])
def test_ids_outside_the_vocabulary_are_refused_by_name(id: int) -> None:
    with pytest.raises(RequestError, match=rf"prompt holds the token id {id}; the vocabulary is 0..319"):
        refuse_unknown_ids([1, id], 320, "prompt")


@pytest.mark.parametrize("id", [10**4000, -(10**4000)])
def test_an_id_of_thousands_of_digits_is_not_repeated(id: int) -> None:
    with pytest.raises(RequestError, match=r"^prompt holds the token id of too many digits; the vocabulary"):
        refuse_unknown_ids([1, id], 320, "prompt")
