"""`/v1/messages`: what an answer is made of, whole and in events, and why it ended."""

from typing import Any

import pytest

from gateway.routes.openai.chat import LONG
from tests.gateway.fixtures import HELLO, serve
from tests.gateway.routes.anthropic.conversations import (
    ASK,
    PATH,
    THINKING,
    USER,
    WEATHER,
    added_up,
    asked,
    both,
    events_of,
    script,
    serving,
)
from tests.gateway.routes.openai.test_reasoning import THOUGHT, ids
from tests.gateway.routes.openai.tool_chats import PARIS, ROME

TEXT = {"type": "text", "text": "hello world", "citations": None}
PARIS_INPUT = {"city": "Paris"}


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]


async def test_a_message_has_anthropics_fields_and_the_models_text() -> None:
    message = await asked("hello world")
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "mock/model")
    assert message["content"] == [TEXT]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)


async def test_the_id_of_a_message_is_that_of_its_request() -> None:
    async with serving() as app:
        whole = await app.post(PATH, ASK)
        streamed = await app.post(PATH, {**ASK, "stream": True})
    assert whole.json()["id"] == f"msg_{whole.headers['request-id']}"
    assert events_of(streamed)[0]["message"]["id"] == f"msg_{streamed.headers['request-id']}"


@pytest.mark.parametrize("tokens_per_step", [1, 3])
async def test_a_limit_ends_a_message(tokens_per_step: int) -> None:
    async with serve(HELLO, tokens_per_step=tokens_per_step) as app:
        message = await both(app, max_tokens=2)
    assert (message["content"][0]["text"], message["stop_reason"]) == ("hello", "max_tokens")
    assert message["usage"]["output_tokens"] == 2


async def test_a_stop_sequence_is_named_and_left_out_of_the_text() -> None:
    message = await asked("hello world", stop_sequences=["zzz", "o w"])
    assert message["content"] == [{**TEXT, "text": "hell"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "o w")


async def test_an_answer_without_text_has_an_empty_block() -> None:
    message = await asked("")
    assert message["content"] == [{**TEXT, "text": ""}] and message["stop_reason"] == "end_turn"


async def test_thinking_is_a_block_before_the_text_and_is_counted() -> None:
    message = await asked(THOUGHT, THINKING)
    assert message["content"] == [{"type": "thinking", "thinking": "he he", "signature": ""}, TEXT]
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": len(ids("he he"))}


async def test_a_block_of_thinking_ends_with_its_signature() -> None:
    async with serving(THOUGHT, template=THINKING) as app:
        events = events_of(await app.post(PATH, {**ASK, "stream": True}))
    end = events.index({"type": "content_block_stop", "index": 0})
    assert events[end - 1]["delta"] == {"type": "signature_delta", "signature": ""}


async def test_thinking_that_is_to_be_omitted_is_left_out_and_counted() -> None:
    message = await asked(THOUGHT, THINKING, thinking={"type": "adaptive", "display": "omitted"})
    assert message["content"] == [TEXT]
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_calls_are_blocks_with_parsed_input_and_distinct_ids() -> None:
    message = await asked(PARIS + "\n" + ROME, tools=[WEATHER])
    assert calls(message) == [("get_weather", PARIS_INPUT), ("get_weather", {"city": "Rome"})]
    assert message["stop_reason"] == "tool_use" and message["stop_sequence"] is None
    assert len({block["id"] for block in message["content"]}) == 2
    assert [block["type"] for block in message["content"]] == ["tool_use", "tool_use"], "space alone is no text"


async def test_text_before_a_call_is_a_block_of_its_own() -> None:
    message = await asked("hello world\n" + PARIS, tools=[WEATHER])
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
    assert message["content"][0]["text"].rstrip() == "hello world"


async def test_a_call_follows_thinking() -> None:
    message = await asked("[THINK]\nhe he\n[/THINK]\n\n" + PARIS, THINKING, tools=[WEATHER])
    assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]


async def test_a_forced_call_is_a_tool_use_although_the_model_had_no_choice() -> None:
    message = await asked(PARIS, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"})
    assert calls(message) == [("get_weather", PARIS_INPUT)] and message["stop_reason"] == "tool_use"


async def test_without_parallel_use_an_answer_has_one_call() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = await asked(PARIS + "\n" + ROME, tools=[WEATHER], tool_choice=choice)
    assert calls(message) == [("get_weather", PARIS_INPUT)]


async def test_tools_that_may_not_be_used_are_not_looked_for() -> None:
    message = await asked(PARIS, tools=[WEATHER], tool_choice={"type": "none"})
    assert calls(message) == [] and message["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('{"city": "Paris", "day": 5, "mood": "gl', {"city": "Paris", "day": 5}),
        ('{"city": "Paris"', {"city": "Paris"}),
        ('{"ci', {}),
        ('{"days": 1e999, "ci', {"INVALID_JSON": '{"days": 1e999, "ci'}),
        ("", {}),
    ],
)
async def test_of_a_call_that_the_limit_cuts_the_whole_members_are_kept(written: str, kept: dict[str, Any]) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": ' + written
    async with serving(text + '", "x": 1}}') as app:
        response = await app.post(PATH, {**ASK, "tools": [WEATHER], "max_tokens": len(ids(text))})
    message = response.json()
    assert calls(message) == [("get_weather", kept)], message
    assert message["stop_reason"] == "max_tokens"


async def test_arguments_that_are_no_json_are_shown_as_they_were_written() -> None:
    async with serving('<tool_call>\n{"name": "get_weather", "arguments": {"city": Paris}}\n</tool_call>') as app:
        message = (await app.post(PATH, {**ASK, "tools": [WEATHER]})).json()
    assert calls(message) == [("get_weather", {"INVALID_JSON": '{"city": Paris}'})]


async def test_a_schema_of_the_answer_reaches_the_engine() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": schema}
    async with serving() as app:
        await app.post(PATH, {**ASK, "output_config": {"format": form}})
        await app.post(PATH, {**ASK, "output_format": form})
        await app.post("/v1/chat/completions", messages=USER, response_format={"type": "json_object", "schema": schema})
        newer, older, openai = (request.grammar for request in app.engine.requests)
    assert newer == older == openai and newer.ByteSize()


async def test_sampling_reaches_the_engine() -> None:
    async with serving() as app:
        await app.post(PATH, {**ASK, "temperature": 0.5, "top_k": 7, "top_p": 0.25, "max_tokens": 9})
        [request] = app.engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, request.max_new_tokens) == (0.5, 7, 0.25, 9)


async def test_what_the_cache_holds_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as app:
        generate = app.engine.generate

        async def cached(request: Any) -> Any:
            async for event in generate(request):
                if event.HasField("prompt"):
                    event.prompt.cached_tokens = 4
                yield event

        monkeypatch.setattr(app.engine, "generate", cached)
        usage = (await both(app))["usage"]
        counted = (await app.post(f"{PATH}/count_tokens", {"model": "tgi", "messages": USER})).json()
    assert usage["cache_read_input_tokens"] == 4 and usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + 4 == counted["input_tokens"]


async def test_the_first_event_counts_the_prompt() -> None:
    async with serving() as app:
        first, *_, ending, _ = events_of(await app.post(PATH, {**ASK, "stream": True}))
    assert first["message"]["content"] == [] and first["message"]["stop_reason"] is None
    assert first["message"]["usage"]["input_tokens"] == ending["usage"]["input_tokens"] > 0


async def test_a_long_answer_is_read_to_its_end() -> None:
    async with serve(script("a " * (LONG + 50)), max_total_tokens=4 * LONG) as app:
        message = await both(app, max_tokens=3 * LONG)
    assert message["content"][0]["text"] == "a " * (LONG + 50)


async def test_nothing_is_left_behind() -> None:
    async with serving() as app:
        await both(app)
        assert app.engine.open == 0 and app.gateway.admission.active == 0
        text = (await app.http.get("/metrics")).text
    assert "tgi_request_success" in text


async def test_a_stream_that_breaks_ends_in_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as app:
        generate = app.engine.generate

        async def broken(request: Any) -> Any:
            async for event in generate(request):
                yield event
                raise RuntimeError("secret")

        monkeypatch.setattr(app.engine, "generate", broken)
        response = await app.post(PATH, {**ASK, "stream": True})
        events = events_of(response)
    assert events[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "internal error"},
        "request_id": response.headers["request-id"],
    }
    with pytest.raises(AssertionError):
        added_up(events)
