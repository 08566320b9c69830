"""Images in the Messages API and in Responses: the engine gets what it gets of the same chat."""

from typing import Any

import pytest

from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.seeing import base64_of, data_url, number_of, picture, png, shown

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
FILE, NUMBER = png(), number_of(picture())
PART = {"type": "image_url", "image_url": {"url": data_url(FILE)}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": base64_of(FILE)}
BLOCK = {"type": "image", "source": SOURCE}
ITEM = {"type": "input_image", "image_url": data_url(FILE), "detail": "high"}
NAME = "qwen2_5_vl"
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}


def text(words: str, type: str = "text") -> dict[str, Any]:
    return {"type": type, "text": words}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def same_as_chat(app: ServedApp, messages: list[dict[str, Any]], **fields: Any) -> None:
    """The last request of the engine is that of a chat of these `messages`."""
    answer = await app.post(CHAT, messages=messages, max_tokens=2, **fields)
    assert answer.status_code == 200, answer.text
    *_, asked, chat = app.engine.requests
    assert list(asked.prompt) == list(chat.prompt)
    assert shown(asked) == shown(chat) and [number for _, _, number in shown(chat)] == [NUMBER]


async def test_a_block_is_read_in_a_message() -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        body = {"model": "tgi", "max_tokens": 2, "messages": [user([BLOCK, text("What?")])]}
        answer = await app.post(MESSAGES, body)
        assert answer.status_code == 200, answer.text
        tokens = answer.json()["usage"]["input_tokens"]
        await same_as_chat(app, [user([PART, text("What?")])])
        counted = await app.post(f"{MESSAGES}/count_tokens", {"model": "tgi", "messages": body["messages"]})
        assert counted.json()["input_tokens"] == tokens == len(app.engine.requests[0].prompt)


@pytest.mark.parametrize("failed", [False, True])
async def test_a_block_is_read_in_the_result_of_a_tool(failed: bool) -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text("seen"), BLOCK], "is_error": failed}
    async with serve(sees=NAME, max_total_tokens=512) as app:
        messages = [user("a"), {"role": "assistant", "content": [call]}, user([result])]
        answer = await app.post(MESSAGES, model="tgi", max_tokens=2, messages=messages)
        assert answer.status_code == 200, answer.text
        called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        told = {"role": "tool", "tool_call_id": "a", "content": [text("Error: seen" if failed else "seen"), PART]}
        await same_as_chat(app, [user("a"), {"role": "assistant", "content": "", "tool_calls": [called]}, told])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({**SOURCE, "data": "aGVsbG8="}, "the image is not a whole PNG"),
        ({**SOURCE, "media_type": "application/pdf"}, "must be of type image/png"),
        ({"type": "url", "url": "https://example.com/a.png"}, "--allowed-media-domains is not set"),
        ({"type": "url"}, "a source of type url needs url"),
    ],
)
async def test_what_cannot_be_read_is_anthropics_400(source: dict[str, Any], said: str) -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        block = {"type": "image", "source": source}
        answer = await app.post(MESSAGES, model="tgi", max_tokens=2, messages=[user([block])])
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["type"] == "invalid_request_error"
        assert said in error["message"] and "image_url" not in error["message"]


async def test_an_item_is_read_in_a_message() -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        content = [ITEM, text("What?", "input_text")]
        answer = await app.post(RESPONSES, input=[user(content)], max_output_tokens=2)
        assert answer.status_code == 200, answer.text
        await same_as_chat(app, [user([PART, text("What?")])])
        counted = await app.post(f"{RESPONSES}/input_tokens", input=[user(content)])
        tokens = answer.json()["usage"]["input_tokens"]
        assert counted.json()["input_tokens"] == tokens == len(app.engine.requests[0].prompt)


async def test_an_item_is_read_in_the_output_of_a_function() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": [text("seen", "input_text"), ITEM]}
    async with serve(sees=NAME, max_total_tokens=512) as app:
        answer = await app.post(RESPONSES, input=[user("a"), call, output], max_output_tokens=2)
        assert answer.status_code == 200, answer.text
        called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        told = {"role": "tool", "tool_call_id": "a", "content": [text("seen"), PART]}
        await same_as_chat(app, [user("a"), {"role": "assistant", "content": "", "tool_calls": [called]}, told])


async def test_a_stored_response_is_gone_on_from_with_its_images() -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        first = (await app.post(RESPONSES, input=[user([ITEM])], max_output_tokens=2)).json()
        more = {"previous_response_id": first["id"], "input": "And?", "max_output_tokens": 2}
        assert (await app.post(RESPONSES, more)).status_code == 200
        before, after = app.engine.requests
        assert list(after.prompt[: len(before.prompt)]) == list(before.prompt)
        assert after.images[0] == before.images[0] and len(after.images) == 1
        listed = (await app.http.get(f"{RESPONSES}/{first['id']}/input_items")).json()["data"]
        assert listed[0]["content"] == [{"type": "input_image", "image_url": data_url(FILE), "detail": "high"}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([user([{"type": "input_image", "file_id": "a"}])], "file_id is not supported"),
        ([user([{"type": "input_image"}])], "needs its image_url"),
        ([user([{**ITEM, "detail": "best"}])], "detail"),
        ([{"role": "assistant", "content": [ITEM]}], "may stand in the input of users"),
        ([user([{**ITEM, "image_url": "data:image/png;base64,aGVsbG8="}])], "the image is not a whole PNG"),
    ],
)
async def test_what_cannot_be_read_is_a_400_in_the_words_of_responses(given: list[Any], said: str) -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        answer = await app.post(RESPONSES, input=given, max_output_tokens=2)
        error = answer.json()["error"]
        assert answer.status_code == 400 and said in error["message"], answer.text
        assert error["param"].startswith("input")
