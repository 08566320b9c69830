"""A response, whole and by its events: items of text, reasoning and calls, and how they end."""

from typing import Any

import pytest

from gateway.routes.openai_responses.input_items import opened
from tests.engine_mock import EOS
from tests.gateway.fixtures import serve
from tests.gateway.routes.openai.test_reasoning import THOUGHT
from tests.gateway.routes.openai.test_reasoning import ids as tokens_of
from tests.gateway.routes.openai.tool_chats import PARIS, ROME
from tests.gateway.routes.openai_responses.scripted import (
    PATH,
    TIME,
    WEATHER,
    create,
    events,
    plain,
    serving,
    stream,
    without_ids,
)

LOGPROBS = ["message.output_text.logprobs"]
CALLS = [("function_call", '{"city": "Paris"}'), ("function_call", '{"city": "Rome"}')]
ANSWERS: dict[str, tuple[str, dict[str, Any], list[tuple[str, str]]]] = {
    "text": ("hello world", {}, [("message", "hello world")]),
    "nothing": ("", {}, [("message", "")]),
    "reasoning": (THOUGHT, {}, [("reasoning", "he he"), ("message", "hello world")]),
    "reasoning left out": (THOUGHT, {"include_reasoning": False}, [("message", "hello world")]),
    "calls": (PARIS + ROME, {"tools": [WEATHER]}, CALLS),
    "one call": (PARIS + ROME, {"tools": [WEATHER], "parallel_tool_calls": False}, CALLS[:1]),
    "text and call": ("hello " + PARIS, {"tools": [WEATHER]}, [("message", "hello "), CALLS[0]]),
    "a tool that is not offered": (PARIS, {"tools": [TIME]}, CALLS[:1]),
    "no arguments": ('<tool_call>{"name": "get_time"}</tool_call>', {"tools": [TIME]}, [("function_call", "{}")]),
    "marks without tools": (PARIS, {}, [("message", PARIS)]),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_becomes_items_and_its_events_add_up_to_them(name: str) -> None:
    answer, fields, expected = ANSWERS[name]
    async with serving(answer) as app:
        whole = await create(app, **fields)
        told = await stream(app, **fields)
    assert [(kind, text.strip()) for kind, text in plain(whole["output"])] == [(k, t.strip()) for k, t in expected]
    assert whole["status"] == "completed" and all(item["status"] == "completed" for item in whole["output"])
    assert without_ids(told[-1]["response"]) == without_ids(whole)
    assert [event["item"] for event in told if event["type"] == "response.output_item.done"] == whole_items(told)
    for index, item in enumerate(whole_items(told)):
        own = [event for event in told if event.get("output_index") == index]
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}
        assert "".join(event["delta"] for event in own if "delta" in event) == plain([item])[0][1]


def whole_items(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = told[-1]["response"]["output"]
    return items


async def test_events_come_in_openais_order() -> None:
    async with serving(THOUGHT + PARIS) as app:
        told = await stream(app, tools=[WEATHER])
    kinds = [event["type"].removeprefix("response.") for event in told]
    once = [kind for number, kind in enumerate(kinds) if kind != (kinds[number - 1] if number else None)]
    text = ["output_item.added", "content_part.added", "{0}.delta", "{0}.done", "content_part.done", "output_item.done"]
    call = ["output_item.added", "{0}.delta", "{0}.done", "output_item.done"]
    expected = [*(each.format("reasoning_text") for each in text), *(each.format("output_text") for each in text)]
    expected += [each.format("function_call_arguments") for each in call]
    assert once == ["created", "in_progress", *expected, "completed"]
    assert told[0]["response"]["output"] == [] and told[0]["response"]["status"] == "in_progress"


async def test_usage_counts_prompt_answer_and_reasoning() -> None:
    async with serving(THOUGHT) as app:
        usage = (await create(app))["usage"]
        assert usage["input_tokens"] == len(app.engine.requests[0].prompt)
    generated = len(tokens_of(THOUGHT)) + 1
    assert usage["output_tokens"] == generated and usage["total_tokens"] == usage["input_tokens"] + generated
    assert usage["output_tokens_details"] == {"reasoning_tokens": len(tokens_of("he he"))}


@pytest.mark.parametrize(("answer", "tools"), [("hello world", []), (THOUGHT, []), (PARIS, [WEATHER])])
async def test_a_limit_leaves_the_response_and_its_last_item_incomplete(answer: str, tools: list[Any]) -> None:
    most = len(tokens_of(answer)) - 4
    async with serving(answer) as app:
        whole = await create(app, max_output_tokens=most, tools=tools)
        told = await stream(app, max_output_tokens=most, tools=tools)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["completed_at"] is None and whole["usage"]["output_tokens"] == most
    assert [item["status"] for item in whole["output"]][-1] == "incomplete"
    assert told[-1]["type"] == "response.incomplete"
    assert without_ids(told[-1]["response"]) == without_ids(whole)


async def test_a_stop_string_completes_the_response_but_not_the_call_that_it_cuts() -> None:
    async with serving(PARIS) as app:
        response = await create(app, tools=[WEATHER], stop="Par")
    [call] = response["output"]
    assert (response["status"], call["status"]) == ("completed", "incomplete")


@pytest.mark.parametrize("answer", ["hello world", THOUGHT, "h\u00e9 \u4e16\u754c", THOUGHT + PARIS])
async def test_logprobs_are_of_the_tokens_of_the_text(answer: str) -> None:
    async with serving(answer) as app:
        whole = await create(app, include=LOGPROBS, top_logprobs=2, tools=[WEATHER])
        told = await stream(app, include=LOGPROBS, top_logprobs=2, tools=[WEATHER])
    [part] = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
    listed = b"".join(bytes(each["bytes"]) for each in part["logprobs"]).decode()
    assert listed.strip() == part["text"].strip() != ""
    assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])
    deltas = [each for event in told for each in event.get("logprobs", []) if event["type"].endswith("text.delta")]
    assert deltas == part["logprobs"]


async def test_no_logprobs_are_listed_unasked() -> None:
    async with serving() as app:
        response = await create(app)
        assert response["output"][0]["content"][0]["logprobs"] == []
        assert app.engine.requests[0].sampling.top_logprobs == 0


async def test_reasoning_can_be_asked_for_in_the_form_that_clients_send_back() -> None:
    async with serving(THOUGHT) as app:
        response = await create(app, include=["reasoning.encrypted_content"])
    assert opened(response["output"][0]["encrypted_content"]) == "he he"


async def test_a_failure_before_the_first_token_is_an_error() -> None:
    async with serve() as app:
        app.engine.unavailable = "the engine stopped"
        for streams in (True, False):
            answer = await app.post(PATH, {"input": "lo", "stream": streams})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")


async def test_a_failure_in_mid_stream_is_told_as_the_last_state_and_as_an_error() -> None:
    async with serve() as app:
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 2
        told = events(await app.post(PATH, {"input": "lo", "stream": True}))
        failed, error = told[-2:]
        assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": "server_error", "message": "the engine stopped"}
        assert plain(failed["response"]["output"]) == [("message", "hello")]
        assert error["type"] == "error" and error["message"] == error["error"]["message"] == "the engine stopped"
        assert (await app.http.get(f"{PATH}/{failed['response']['id']}")).status_code == 404
        assert app.gateway.admission.active == 0


async def test_the_response_repeats_what_was_asked_for() -> None:
    asked: dict[str, Any] = {
        "instructions": "be", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "metadata": {"a": "b"},
        "tools": [WEATHER, {**TIME, "strict": True}], "tool_choice": {"type": "function", "name": "get_time"},
        "parallel_tool_calls": False, "truncation": "auto", "store": False, "top_logprobs": 2,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
    }  # fmt: skip
    async with serving('{"name": "get_time", "arguments": {}}') as app:
        response = await create(app, **asked)
    same = asked.keys() - {"tools", "text", "reasoning"}
    assert {name: response[name] for name in same} == {name: asked[name] for name in same}
    assert response["text"] == {"format": asked["text"]["format"]}
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["tools"] == [{**WEATHER, "strict": False}, {**TIME, "description": None, "strict": True}]


async def test_what_the_body_leaves_open_is_what_the_model_recommends() -> None:
    async with serve(generation_config={"temperature": 0.25, "top_p": 0.5}) as app:
        response = await create(app)
        sampling = app.engine.requests[0].sampling
        assert (response["temperature"], response["top_p"]) == (sampling.temperature, sampling.top_p) == (0.25, 0.5)


async def test_a_request_ends_with_its_end_token_and_gives_its_permit_back() -> None:
    async with serve([EOS]) as app:
        await create(app)
        assert app.engine.open == app.gateway.admission.active == 0
        assert app.gateway.metrics.registry.get_sample_value("tgi_request_success_total") == 1
