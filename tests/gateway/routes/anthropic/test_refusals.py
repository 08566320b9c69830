"""Every failure is Anthropic's error object, with its type, its status and the field that is at fault."""

from typing import Any

import pytest

from gateway.errors import Kind, RequestError
from gateway.routes.anthropic import errors
from gateway.routes.openai import errors as openai_errors
from tests.gateway.fixtures import serve
from tests.gateway.routes.anthropic.conversations import ASK, PATH, USER, WEATHER, refused, serving

IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens: must be a whole number"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1 (given 0)"),
        ({"messages": []}, "messages: must not be empty"),
        ({"temperature": 2.5}, "temperature: must be at most 2 (given 2.5)"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role: must be 'user', 'assistant' or 'system'"),
        (user({"type": "image"}), "messages.0.content.0: a block of type image needs source"),
        (user({"type": "image", "source": IMAGE}), "messages: this model reads no images, only text"),
        (
            user({"type": "image", "source": {"type": "file", "file_id": "a"}}),
            "messages.0.content.0.source: sources of type file are not supported, only base64 and url",
        ),
        (user({"type": "document"}), "messages.0.content.0: blocks of type document are not supported"),
        (
            user({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}),
            "messages.0.content.0: blocks of type document are not supported",
        ),
        (
            user({"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": "c"}]}),
            "messages.0.content.0: blocks of type search_result are not supported",
        ),
        (
            user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "search_result", "source": "a"}]}),
            "messages.0.content.0.content.0: blocks of type search_result are not supported here, only text and image",
        ),
        (
            user({"type": "image", "source": IMAGE, "transformations": {"oversized_image": "error"}}),
            "messages.0.content.0.transformations.oversized_image: must be 'downsize'",
        ),
        (user({"type": "<script>"}), "messages.0.content.0: blocks of that type are not supported"),
        (user({"type": "text"}), "messages.0.content.0: a block of type text needs text"),
        (
            user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}),
            "messages.0.content.0.content.0: a block of type image needs source",
        ),
        (
            user({"type": "tool_use", "id": "a", "name": "b", "input": {}}),
            "messages.0: a message of the role user may hold no block of type tool_use",
        ),
        (
            {"tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]},
            "tools.1: tools of type web_search_20250305 are not supported, only a client's own (custom)",
        ),
        ({"tools": [{"name": "a"}]}, "tools.0: input_schema is required"),
        ({"tools": [WEATHER, WEATHER]}, "tools holds two functions named `get_weather`"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, which needs tools"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}},
            "tool_choice names a function `other` that is not among the tools",
        ),
        ({"thinking": {"type": "enabled"}}, "thinking: thinking of type enabled needs budget_tokens"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences takes at most 4 texts (--max-stop-sequences), given 5"),
        ({"stop_sequences": [""]}, "stop_sequences.0: must not be empty"),
        ({"container": "a"}, "container is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management is not supported",
        ),
    ],
)
async def test_a_refusal_names_the_field(fields: dict[str, Any], message: str) -> None:
    assert await refused(**fields) == message


async def test_a_refused_thread_has_the_code_after_which_clients_go_on_without_one() -> None:
    async with serving() as app:
        response = await app.post(PATH, {**ASK, "thread": {"type": "create"}})
    assert (response.status_code, response.json()["error"]) == (
        400,
        {
            "type": "invalid_request_error",
            "message": "thread is not supported",
            "details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        },
    )


@pytest.mark.parametrize("name", ["model", "messages", "max_tokens"])
async def test_what_anthropic_requires_is_required(name: str) -> None:
    async with serving() as app:
        response = await app.post(PATH, {key: value for key, value in ASK.items() if key != name})
    assert (response.status_code, response.json()["error"]["message"]) == (400, f"{name}: is required")


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"tools": [{**WEATHER, "input_schema": {"type": "object", "properties": {"a": {"not": {}}}}}],
          "tool_choice": {"type": "any"}}, "tools.0.input_schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format"),
    ],
)  # fmt: skip
async def test_a_schema_that_cannot_be_enforced_is_refused_by_anthropics_name(schema: Any, field: str) -> None:
    assert (await refused(**schema)).startswith(field)


@pytest.mark.parametrize(
    "fields",
    [
        {"mcp_servers": [], "container": None, "context_management": {"edits": []}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"metadata": {"user_id": "me"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}, "unknown": 1},
        {"system": None, "tools": [], "thinking": None, "stop_sequences": [], "stream": False},
    ],
)
async def test_what_asks_for_nothing_is_taken(fields: dict[str, Any]) -> None:
    async with serving() as app:
        assert (await app.post(PATH, {**ASK, **fields})).status_code == 200


async def test_an_error_has_anthropics_shape_and_the_requests_id() -> None:
    async with serving() as app:
        response = await app.post(PATH, {**ASK, "model": "claude-nobody"})
    assert response.status_code == 404 and response.headers["x-should-retry"] == "false"
    message = "the model `claude-nobody` does not exist; this server serves `mock/model`"
    id = response.headers["request-id"]
    assert response.json() == {
        "type": "error",
        "error": {"type": "not_found_error", "message": message},
        "request_id": id,
    }


async def test_a_model_is_served_under_the_name_that_a_client_asks_for() -> None:
    async with serving(served_model_name=("mine", "claude-sonnet-5")) as app:
        response = await app.post(PATH, {**ASK, "model": "claude-sonnet-5"})
    assert response.json()["model"] == "mine"


async def test_agents_learn_how_many_tokens_are_too_many() -> None:
    asked = {"max_tokens": 2000}
    async with serving() as app:
        counted = (await app.post(f"{PATH}/count_tokens", {"model": "tgi", "messages": USER})).json()["input_tokens"]
    begin = f"input length and `max_tokens` exceed context limit: {counted} + 2000 > 1500, "
    assert (await refused(**asked)).startswith(begin)


async def test_a_prompt_that_is_too_long_says_so_with_numbers() -> None:
    async with serve(max_total_tokens=16) as app:
        response = await app.post(PATH, {**ASK, "max_tokens": 1})
    assert response.json()["error"]["message"] == "prompt is too long: 19 tokens > 15 maximum"


async def test_an_overload_is_a_rate_limit_with_advice() -> None:
    async with serving() as app:
        with app.gateway.admission.request(16):
            response = await app.post(PATH, ASK)
    assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
    assert response.headers["x-should-retry"] == "true" and int(response.headers["retry-after"]) >= 1


async def test_a_failure_before_the_first_event_has_its_status() -> None:
    async with serving() as app:
        app.gateway.draining = True
        response = await app.post(PATH, {**ASK, "stream": True})
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")


@pytest.mark.parametrize(
    ("content", "content_type", "status"), [(b"{", "application/json", 400), (b"{}", "text/plain", 415)]
)
async def test_a_body_that_is_no_json_is_refused_in_anthropics_words(
    content: bytes, content_type: str, status: int
) -> None:
    async with serving() as app:
        response = await app.raw(PATH, content, content_type)
    assert (response.status_code, response.json()["error"]["type"]) == (status, "invalid_request_error")


async def test_unknown_paths_and_methods_are_anthropics() -> None:
    async with serving() as app:
        unknown, method = await app.http.get(f"{PATH}/batches"), await app.http.get(PATH)
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    assert (method.status_code, method.json()["error"]["type"]) == (405, "invalid_request_error")
    assert method.headers["allow"] == "POST" and method.json()["type"] == "error"


def test_every_kind_of_error_has_words_and_is_tried_again_as_openais_are() -> None:
    assert errors.WORDING.keys() == set(Kind)
    for kind in Kind:
        ours, theirs = (words.error_response(RequestError(kind, "a")) for words in (errors, openai_errors))
        assert ours.status_code == theirs.status_code
        assert ours.headers["x-should-retry"] == theirs.headers["x-should-retry"]
