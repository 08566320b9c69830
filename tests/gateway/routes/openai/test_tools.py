"""Tools over `/v1/chat/completions`: the model's calls as OpenAI's clients read them, and what it is held to."""

import json
import re
from typing import Any

import pytest

from gateway.routes.openai import chat
from tests.gateway.fixtures import HELLO, Callers, events, serve
from tests.gateway.routes.openai.test_chat import USER, deltas
from tests.gateway.routes.openai.tool_chats import (
    HISTORY,
    PARIS,
    PATH,
    ROME,
    TIME,
    WEATHER,
    asked,
    calls_of,
    joined,
    script,
    serving,
)


async def test_a_call_is_answered_as_openai_does() -> None:
    choice, stream = await asked(PARIS)
    message = choice["message"]
    assert calls_of(message) == [("get_weather", {"city": "Paris"})]
    [call] = message["tool_calls"]
    assert call.keys() == {"id", "type", "function"} and call["type"] == "function"
    assert re.fullmatch("call_[A-Za-z0-9]{24}", call["id"])
    assert (message["content"], message["refusal"], choice["finish_reason"]) == (None, None, "tool_calls")
    [streamed] = joined(stream)["calls"]
    assert (streamed["name"], json.loads(streamed["arguments"])) == ("get_weather", {"city": "Paris"})


async def test_a_stream_says_id_type_and_name_once_and_then_fragments() -> None:
    _, stream = await asked(PARIS + "\n" + ROME)
    assert stream[0]["delta"] == {"role": "assistant", "content": ""}
    *parts, last = stream[1:]
    first: set[int] = set()
    for part in parts:
        [call] = part["delta"]["tool_calls"]
        if call["index"] not in first:
            assert call.keys() == {"index", "id", "type", "function"}
            assert call["function"] == {"name": "get_weather", "arguments": ""}
        else:
            assert call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
        first.add(call["index"])
        assert part["finish_reason"] is None
    assert first == {0, 1}
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    arguments = [json.loads(call["arguments"]) for call in joined(stream)["calls"]]
    assert arguments == [{"city": "Paris"}, {"city": "Rome"}]


async def test_content_stays_beside_calls_and_alone() -> None:
    choice, stream = await asked("hello " + PARIS)
    assert choice["message"]["content"].strip() == "hello" and choice["finish_reason"] == "tool_calls"
    assert joined(stream)["content"] == choice["message"]["content"]
    choice, stream = await asked("hello world")
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hello world", "stop")
    assert "tool_calls" not in choice["message"]
    assert joined(stream) == {"role": "assistant", "content": "hello world"}


async def test_a_call_that_is_cut_off_ends_by_length() -> None:
    choice, stream = await asked(PARIS, max_tokens=len(script(PARIS)) - 20)
    assert choice["finish_reason"] == stream[-1]["finish_reason"] == "length"
    [call] = choice["message"]["tool_calls"]
    [streamed] = joined(stream)["calls"]
    assert call["function"]["arguments"] == streamed["arguments"] == '{"city": "Pa'


@pytest.mark.parametrize(("stop", "rest"), [("ris", '{"city": "Pa'), (' {"city', ""), ("}", '{"city": "Paris"')])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_call_that_a_stop_string_cuts_is_answered_as_far_as_it_goes_and_ends_by_stop(
    stop: str, rest: str, choice: str
) -> None:
    answer, stream = await asked(PARIS, stop=stop, tool_choice=choice)
    [call] = answer["message"]["tool_calls"]
    [streamed] = joined(stream)["calls"]
    assert call["function"]["arguments"] == streamed["arguments"] == rest
    assert answer["finish_reason"] == stream[-1]["finish_reason"] == "stop"
    assert answer["stop_reason"] == stop


async def test_a_stop_string_behind_a_call_leaves_it_whole() -> None:
    for stop in ("}\n", "</tool_call>", "\n<tool_call>"):
        choice, stream = await asked(PARIS + "\n" + ROME, stop=stop)
        assert calls_of(choice["message"]) == [("get_weather", {"city": "Paris"})]
        assert choice["finish_reason"] == stream[-1]["finish_reason"] == "tool_calls"


async def test_a_call_that_never_gets_a_name_is_text_unless_the_limit_cut_it() -> None:
    begun = PARIS.partition("_weather")[0]
    for fields, reason, content in (
        ({}, "stop", begun),
        ({"stop": "_weather"}, "stop", begun),
        ({"max_tokens": len(script(begun)) - 1}, "length", ""),
    ):
        choice, stream = await asked(PARIS if "stop" in fields else begun, **fields)
        assert (choice["message"]["content"], choice["finish_reason"]) == (content, reason)
        assert joined(stream).get("content", "") == content and stream[-1]["finish_reason"] == reason


async def test_of_a_call_that_must_come_and_never_gets_a_name_nothing_is_told() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    begun = '[{"name": "get'
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice, content in (("required", ""), (named, ""), ("auto", begun)):
        limit = len(script(begun)) - 1
        answer, stream = await asked(begun, template, tool_choice=choice, max_tokens=limit)
        assert (answer["message"]["content"], answer["finish_reason"]) == (content, "length")
        assert joined(stream).get("content", "") == content and stream[-1]["finish_reason"] == "length"


async def test_a_named_function_ends_by_stop() -> None:
    choice, stream = await asked(PARIS, tool_choice={"type": "function", "function": {"name": "get_weather"}})
    assert calls_of(choice["message"]) == [("get_weather", {"city": "Paris"})]
    assert choice["finish_reason"] == stream[-1]["finish_reason"] == "stop"


async def test_without_parallel_calls_there_is_one() -> None:
    choice, stream = await asked(PARIS + "\n" + ROME, parallel_tool_calls=False)
    assert calls_of(choice["message"]) == [("get_weather", {"city": "Paris"})]
    assert len(joined(stream)["calls"]) == 1


async def test_the_older_functions_are_answered_by_function_call() -> None:
    fields = {"tools": None, "functions": [WEATHER["function"]]}
    choice, stream = await asked(PARIS, **fields)
    call = choice["message"]["function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
    assert choice["message"]["content"] is None and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == stream[-1]["finish_reason"] == "function_call"
    parts = [each["delta"]["function_call"] for each in stream if "function_call" in each["delta"]]
    assert parts[0] == {"name": "get_weather", "arguments": ""}
    assert all(part.keys() == {"arguments"} for part in parts[1:])
    choice, _ = await asked(PARIS, **fields, function_call={"name": "get_weather"})
    assert choice["finish_reason"] == "stop"


async def test_logprobs_and_ids_of_a_stream_are_those_of_the_answer() -> None:
    choice, stream = await asked("hello " + PARIS, logprobs=True, return_token_ids=True)
    entries = [entry for each in stream if each["logprobs"] for entry in each["logprobs"]["content"]]
    assert entries == choice["logprobs"]["content"]
    assert [id for each in stream for id in each.get("token_ids", ())] == choice["token_ids"]
    assert len(entries) == len(choice["token_ids"]) == len(script("hello " + PARIS))


async def test_several_choices_have_calls_of_their_own() -> None:
    body = {"messages": USER, "tools": [WEATHER], "n": 3, "stream": True}
    async with serving(PARIS) as app:
        stream = events(await app.post(PATH, body))
        calls = [joined(deltas(stream, index))["calls"] for index in range(3)]
        assert all(json.loads(call["arguments"]) == {"city": "Paris"} for [call] in calls)
        assert len({call["id"] for [call] in calls}) == 3


async def test_tgis_clients_find_role_content_and_id_in_every_delta() -> None:
    _, stream = await asked(PARIS, model="tgi")
    assert all({"role", "content"} <= each["delta"].keys() for each in stream)
    calls = [call for each in stream for call in each["delta"].get("tool_calls", ())]
    assert len(calls) > 1 and len({call["id"] for call in calls}) == 1
    assert [call["function"]["name"] for call in calls] == ["get_weather"] + [None] * (len(calls) - 1)


async def test_a_call_without_arguments_has_an_empty_object() -> None:
    choice, stream = await asked('<tool_call>\n{"name": "get_time"}\n</tool_call>')
    assert calls_of(choice["message"]) == [("get_time", {})]
    assert joined(stream)["calls"][0]["arguments"] == "{}"


async def test_calls_are_text_unless_tools_are_in_play() -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}, {"tools": []}):
        choice, stream = await asked(PARIS, **fields)
        assert choice["message"]["content"] == PARIS == joined(stream)["content"]
        assert choice["finish_reason"] == "stop"


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, ["tools[0]", "type function"]),
    ({"tools": [{"type": "function"}]}, ["tools[0]", "function"]),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, ["tools[0].function", "letters"]),
    ({"tools": [{"type": "function", "function": {"name": "a" * 65}}]}, ["name", "64", "65"]),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, ["parameters", "an object"]),
    ({"tools": [WEATHER, WEATHER]}, ["tools", "two functions named `get_weather`"]),
    ({"tools": [WEATHER] * 129}, ["tools", "128", "129"]),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 262_144}}]},
        ["tools", "262144", "characters"],
    ),
    ({"tools": [WEATHER], "tool_choice": "other"}, ["tool_choice", "`other`", "not among the tools"]),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "g"}}}, ["tool_choice", "`g`"]),
    ({"tools": [WEATHER], "tool_choice": 5}, ["tool_choice", "'required'"]),
    ({"tools": [WEATHER], "tool_choice": {"type": "custom", "custom": {"name": "g"}}}, ["tool_choice"]),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, ["tool_choice", "allowed_tools"]),
    ({"tool_choice": "required"}, ["tool_choice", "needs tools"]),
    ({"function_call": {"name": "f"}}, ["function_call", "needs functions"]),
    ({"tools": [WEATHER], "functions": [WEATHER["function"]]}, ["functions", "tools"]),
    ({"messages": [{"role": "user", "content": "lo", "tool_calls": [HISTORY[1]["tool_calls"][0]]}]}, ["assistant"]),
    ({"messages": [*USER, {"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, ["messages[1].tool_calls[0]"]),
    ({"messages": [*USER, {"role": "function", "content": "lo"}]}, ["messages[1]", "name"]),
    ({"messages": [*USER, {"role": "tool"}]}, ["messages[1]", "content"]),
    ({"thinking_token_budget": 5}, ["thinking_token_budget", "reasoning"]),
    ({"tools": [WEATHER], "tool_choice": "required", "ignore_eos": True}, ["ignore_eos"]),
]


@pytest.mark.parametrize(("fields", "parts"), BAD, ids=lambda value: str(value)[:60])
async def test_what_is_wrong_with_tools_is_said_by_name(fields: dict[str, Any], parts: list[str]) -> None:
    async with serving() as app:
        response = await app.post(PATH, {"messages": USER, **fields})
        assert response.status_code == 400, response.text
        assert all(part in response.json()["error"]["message"] for part in parts), response.text
        assert app.engine.requests == []


@pytest.mark.parametrize("choice", ["none", "auto"])
async def test_a_choice_that_asks_for_nothing_needs_no_tools(choice: str) -> None:
    async with serve(HELLO) as app:
        assert (await app.post(PATH, messages=USER, tool_choice=choice)).status_code == 200


CONSTRAINED: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "required": ({"tool_choice": "required"}, ["get_weather", "get_time"], []),
    "named": (
        {"tool_choice": {"type": "function", "function": {"name": "get_time"}}},
        ["get_time"],
        ["get_weather"],
    ),
    "TGI's name": ({"tool_choice": "get_time"}, ["get_time"], ["get_weather"]),
    "allowed": (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "get_time"}}],
                },
            }
        },
        ["get_time"],
        ["get_weather"],
    ),
    "strict": ({"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]}, ["city"], []),
    "one call": ({"parallel_tool_calls": False}, ["get_weather"], ["city"]),
}


@pytest.mark.parametrize("name", CONSTRAINED)
async def test_what_a_choice_demands_the_engine_is_told_as_a_grammar(name: str) -> None:
    fields, held, left_out = CONSTRAINED[name]
    async with serving(PARIS) as app:
        assert (await app.post(PATH, {"messages": USER, "tools": [WEATHER, TIME], **fields})).status_code == 200
        lark = app.engine.requests[0].grammar.lark
        assert "<tool_call>" in lark
        assert all(text in lark for text in held) and not any(text in lark for text in left_out)


async def test_what_the_model_chooses_freely_has_no_grammar() -> None:
    async with serving(PARIS) as app:
        await app.post(PATH, messages=USER, tools=[WEATHER, TIME])
        assert not app.engine.requests[0].HasField("grammar")


async def test_a_model_without_a_format_is_held_to_a_list_of_calls() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    forced = '[{"name": "get_weather", "parameters": {"city": "Paris"}}]'
    for choice in ("required", "auto"):
        answer, stream = await asked(forced, template, tool_choice=choice)
        assert calls_of(answer["message"]) == [("get_weather", {"city": "Paris"})]
        assert answer["finish_reason"] == stream[-1]["finish_reason"] == "tool_calls"


async def test_a_schema_that_cannot_be_enforced_is_refused_where_it_would_have_to_be() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    async with serving() as app:
        assert (await app.post(PATH, messages=USER, tools=[tool])).status_code == 200
        error = (await app.post(PATH, messages=USER, tools=[tool], tool_choice="required")).json()["error"]
        assert error["param"] == "tools[0].function.parameters" and "uniqueItems" in error["message"]


@pytest.mark.parametrize(
    ("parser", "answer", "id"),
    [
        ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]', "[A-Za-z0-9]{9}"),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>"
            '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
            "functions.get_weather:3",
        ),
    ],
)
async def test_ids_are_those_that_the_models_template_wants_back(parser: str, answer: str, id: str) -> None:
    async with serving(answer, tool_call_parser=parser) as app:
        message = (await app.post(PATH, messages=USER, tools=[WEATHER])).json()["choices"][0]["message"]
        assert calls_of(message) == [("get_weather", {"city": "Paris"})]
        assert re.fullmatch(id, message["tool_calls"][0]["id"])


async def test_chats_of_a_batch_have_calls() -> None:
    async with serving(PARIS) as app:
        answer = await app.post(f"{PATH}/batch", messages=[USER, USER], tools=[WEATHER], tool_choice="required")
        assert [calls_of(each["message"]) for each in answer.json()["choices"]] == [
            [("get_weather", {"city": "Paris"})]
        ] * 2
        ids = {call["id"] for each in answer.json()["choices"] for call in each["message"]["tool_calls"]}
        assert len(ids) == 2 and all(request.HasField("grammar") for request in app.engine.requests)


@pytest.mark.parametrize(
    ("function", "param", "part"),
    [
        ({"parameters": {"type": "object"}, "arguments": {}}, "tools[0].function", "TGI's name of parameters"),
        ({"arguments": []}, "tools[0].function.arguments", "object"),
        ({"arguments": {"type": "array"}}, "tools[0].function", "arguments must be the schema of an object"),
    ],
)
async def test_tgis_name_of_the_parameters_is_named(function: dict[str, Any], param: str, part: str) -> None:
    async with serving() as app:
        tools = [{"type": "function", "function": {"name": "f", **function}}]
        response = await app.post(PATH, messages=USER, tools=tools)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == param and part in error["message"]


@pytest.mark.parametrize("long", [False, True])
async def test_only_a_long_answer_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    monkeypatch.setattr(chat, "LONG", 10 if long else 1000)
    readings = Callers(monkeypatch, chat.finish_fields, chat)
    async with serving("hello " * 20) as app:
        await app.post(PATH, messages=USER, tools=[WEATHER])
        assert readings.beside_the_event_loop is long


async def test_vertex_answers_calls_as_json() -> None:
    async with serving(PARIS) as app:
        instance = {"messages": USER, "tools": [WEATHER]}
        [text] = (await app.post("/vertex", instances=[instance])).json()["predictions"]
        assert json.loads(text)[0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize("long", [False, True])
async def test_vertex_reads_only_a_long_answer_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    monkeypatch.setattr(chat, "LONG", 10 if long else 1000)
    readings = Callers(monkeypatch, chat.MessageWriter, chat)
    async with serving("hello " * 20) as app:
        instance = {"messages": USER, "tools": [WEATHER]}
        assert (await app.post("/vertex", instances=[instance])).json() == {"predictions": ["hello " * 20]}
        assert readings.beside_the_event_loop is long
