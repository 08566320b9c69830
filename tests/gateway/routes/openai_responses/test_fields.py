"""No field of `/v1/responses` that OpenAI's clients, vLLM or SGLang know is ignored unless it is in our list of hints,
and each reaches the chat that it is translated into.
"""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.routes.openai.common import Common, StreamOptions
from gateway.routes.openai.unsupported import HINTS as HINTS_OF_V1
from gateway.routes.openai.unsupported import UNSUPPORTED as UNSUPPORTED_OF_V1
from gateway.routes.openai_responses.schemas import CountRequest, ReasoningOptions, ResponseRequest, TextOptions
from gateway.routes.openai_responses.unsupported import HINTS, HINTS_WITHIN, UNSUPPORTED
from tests.gateway.routes.openai_responses.scripted import TIME, WEATHER, create, prompt_of, refused, serving
from tests.processes import ROOT

OPENAI_3_57 = """
    access_programs background background_options context_management conversation image include input instructions
    max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt
    prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream
    stream_options temperature text tool_choice tools top_logprobs top_p truncation user
"""
OPENAI_3_57_COUNT = """
    conversation input instructions model parallel_tool_calls personality previous_response_id reasoning text
    tool_choice tools truncation
"""
VLLM = """
    background cache_salt enable_response_messages ignore_eos include include_stop_str_in_output input instructions
    logit_bias max_output_tokens max_tool_calls metadata mm_processor_kwargs model parallel_tool_calls
    previous_input_messages previous_response previous_response_id priority prompt prompt_cache_key reasoning
    repetition_penalty request_id seed service_tier skip_special_tokens stop store stream structured_outputs temperature
    text tool_choice tools top_k top_logprobs top_p truncation user vllm_xargs
"""
CHATS = "messages max_tokens max_completion_tokens n response_format reasoning_effort logprobs functions function_call"
LISTS: dict[str, tuple[type[BaseModel], str]] = {
    "OpenAI 3.57": (ResponseRequest, OPENAI_3_57),
    "OpenAI 3.57, count of tokens": (CountRequest, OPENAI_3_57_COUNT),
    "vLLM": (ResponseRequest, VLLM),
    "chats": (ResponseRequest, CHATS),
}
WITHIN: dict[str, tuple[type[BaseModel], str]] = {
    "text": (TextOptions, "format verbosity"),
    "reasoning": (ReasoningOptions, "context effort generate_summary mode summary"),
    "stream_options": (StreamOptions, "include_obfuscation"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_known_field_is_declared_refused_or_a_hint(name: str) -> None:
    model, fields = LISTS[name]
    others = UNSUPPORTED.keys() | UNSUPPORTED_OF_V1.keys() | HINTS | HINTS_OF_V1
    assert set(fields.split()) <= model.model_fields.keys() | others


def test_the_page_lists_every_field() -> None:
    section = (ROOT / "docs/clients.md").read_text().split("## Responses")[1].split("##")[0]
    rows = (line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|"))
    table = {row[0]: set(re.findall(r"`([\w.]+)`", row[1])) for row in rows if len(row) == 2}
    own = ResponseRequest.model_fields.keys() - Common.model_fields.keys()
    assert table["OpenAI's"] | table["chats'"] == own
    assert table["hints besides those above"] == HINTS
    assert table["refused besides those above, unless they ask for nothing"] == UNSUPPORTED.keys()
    within = {f"{field}.{name}" for field in HINTS_WITHIN for name in HINTS_WITHIN[field]}
    assert table["hints within fields"] == within


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
async def test_null_means_absent_and_unknown_fields_are_ignored(path: str) -> None:
    names = ResponseRequest.model_fields.keys() - {"input"} | UNSUPPORTED.keys() | UNSUPPORTED_OF_V1.keys()
    hints = {name: [1] for name in HINTS | HINTS_OF_V1 if name not in ResponseRequest.model_fields}
    async with serving() as app:
        answer = await app.post(path, {"input": "lo", **dict.fromkeys(names), **hints, "whatever": 1})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", WITHIN)
def test_a_known_field_within_another_is_declared_or_a_hint(name: str) -> None:
    model, fields = WITHIN[name]
    assert set(fields.split()) <= model.model_fields.keys() | HINTS_WITHIN[name]


SERVED: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 7, "min_p": 0.5, "typical_p": 0.5, "repetition_penalty": 1.5,
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "seed": 7,
}  # fmt: skip


async def test_the_parameters_of_sampling_reach_the_engine() -> None:
    async with serving() as app:
        await create(app, **SERVED, max_output_tokens=3, stop_token_ids=[7], min_tokens=2, ignore_eos=True, priority=2)
        request = app.engine.requests[0]
    assert {name: getattr(request.sampling, name) for name in SERVED} == SERVED
    assert (request.max_new_tokens, list(request.stop_token_ids), request.min_new_tokens) == (3, [7], 2)
    assert request.ignore_eos and request.priority == 2


async def test_variables_of_the_template_and_documents_reach_it() -> None:
    async with serving(
        template="{{ messages[0].content }}{{ own }}{{ documents[0].text }}{{ reasoning_effort }}"
    ) as app:
        asked = {"chat_template_kwargs": {"own": "1"}, "documents": [{"text": "2"}], "reasoning": {"effort": "low"}}
        await create(app, **asked)
        assert prompt_of(app) == "lo12low"


@pytest.mark.parametrize("format", [{"type": "json_object"}, {"type": "json_schema", "name": "a", "schema": {}}])
async def test_a_format_of_the_text_is_enforced(format: dict[str, Any]) -> None:
    async with serving("{}") as app:
        await create(app, text={"format": format})
        assert app.engine.requests[0].HasField("grammar")
        await create(app, text={"format": {"type": "text"}, "verbosity": "low"})
        assert not app.engine.requests[1].HasField("grammar")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_time"}])
async def test_a_call_that_must_come_is_forced(choice: Any) -> None:
    async with serving('{"name": "get_time", "arguments": {}}') as app:
        response = await create(app, tools=[WEATHER, TIME], tool_choice=choice)
        assert ("get_weather" in app.engine.requests[0].grammar.lark) is (choice == "required")
        assert response["tool_choice"] == choice


async def test_allowed_tools_are_those_that_may_be_called() -> None:
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    async with serving() as app:
        await create(app, tools=[WEATHER, TIME], tool_choice=only)
        assert "get_weather" not in app.engine.requests[0].grammar.lark and "get_weather" in prompt_of(app)


async def test_tools_that_may_not_be_called_are_not_shown() -> None:
    async with serving() as app:
        await create(app, tools=[WEATHER], tool_choice="none")
        assert "get_weather" not in prompt_of(app)


HARMLESS: dict[str, Any] = {
    "background": False, "stream_options": None, "n": 1, "max_tool_calls": 3, "service_tier": "auto", "user": "me",
    "safety_identifier": "me", "prompt_cache_key": "a", "include": ["web_search_call.results"], "unknown": 1,
    "context_management": [], "truncation": "auto", "conversation": None, "response_format": {"type": "text"},
    "image": {}, "access_programs": {}, "moderation": {}, "reasoning": {"summary": "auto", "context": "auto"},
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
async def test_what_changes_no_answer_is_taken(name: str) -> None:
    async with serving() as app:
        await create(app, **{name: HARMLESS[name]})


# What is refused: the field that the refusal names, and a word of it.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "background": ({"background": True}, "background", "not supported"),
    "conversation": ({"conversation": "conv_1"}, "conversation", "not supported"),
    "a stored prompt": ({"prompt": {"id": "pmpt_1"}}, "prompt", "not supported"),
    "compaction": ({"context_management": [{"type": "compaction"}]}, "context_management", "not supported"),
    "a chat's limit": ({"max_tokens": 3}, "max_tokens", "max_output_tokens"),
    "a chat's format": ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
    "a chat's effort": ({"reasoning_effort": "low"}, "reasoning_effort", "reasoning.effort"),
    "several choices": ({"n": 2}, "n", "not supported"),
    "beams": ({"use_beam_search": True}, "use_beam_search", "not supported"),
    "vLLM's messages": ({"enable_response_messages": True}, "enable_response_messages", "not supported"),
    "a field that chats refuse": ({"vllm_xargs": {"a": 1}}, "vllm_xargs", "not supported"),
    "another thing to include": ({"include": ["everything"]}, "include", "not known"),
    "a search": ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
    "a custom tool": ({"tools": [WEATHER, {"type": "custom", "name": "a"}]}, "tools[1].type", "custom"),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name", "tools[0].name"),
    "a tool of no object": (
        {"tools": [{**TIME, "parameters": {"type": "string"}}]}, "tools[0]", "parameters must be the schema",
    ),
    "a tool twice": ({"tools": [TIME, TIME]}, "tools", "two functions"),
    "a tool that cannot be enforced": (
        {"tools": [{**TIME, "strict": True, "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}]},
        "tools[0].parameters", "not",
    ),
    "a choice of no tool": ({"tools": [TIME], "tool_choice": {"type": "function", "name": "a"}}, "tool_choice", "a"),
    "a call without tools": ({"tool_choice": "required"}, "tool_choice", "tools"),
    "a format": ({"text": {"format": {"type": "regex"}}}, "text.format", "json_schema"),
    "a schema that is not there": ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "schema"),
    "a schema's name": (
        {"text": {"format": {"type": "json_schema", "name": "ä", "schema": {}}}}, "text.format.name", "letters",
    ),
    "a schema": (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}, "text.format", "text.format",
    ),
    "two formats": ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex", "text.format"),
    "too long a prompt": ({"input": "lo " * 2000}, "input", "maximum context length"),
    "too many tokens": ({"max_output_tokens": 1500}, "input", "max_output_tokens"),
    "no tokens": ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    "too many logprobs": ({"top_logprobs": 21}, "top_logprobs", "20"),
    "metadata that is no text": ({"metadata": {"a": 1}}, "metadata.a", "a string"),
    "usage in between": (
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        "stream_options", "continuous_usage_stats",
    ),
    "options of a stream that is none": ({"stream_options": {}}, "stream_options", "stream is true"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_names_the_field_as_the_body_does(name: str) -> None:
    fields, param, said = REFUSED[name]
    error = await refused(**fields)
    assert error["param"] == param and said in error["message"], error
    assert not re.search(r"\bmessages\b|\.function", error["message"]), error


async def test_a_prompt_that_is_too_long_is_refused_and_not_cut() -> None:
    error = await refused(input="lo " * 2000, truncation="auto")
    assert error["code"] == "context_length_exceeded" and "truncation auto" in error["message"]
