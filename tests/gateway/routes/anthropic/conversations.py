"""Scripted answers as Anthropic's clients read them: the message, and the same from the events of a stream."""

import json
from typing import Any

import httpx

from gateway.routes.anthropic.responses import Message
from tests.gateway.fixtures import ServedApp
from tests.gateway.routes.openai.test_reasoning import THINKING
from tests.gateway.routes.openai.tool_chats import HERMES, script
from tests.gateway.routes.openai.tool_chats import serving as serving_hermes
from tests.gateway.toys import byte_level

PATH = "/v1/messages"
USER: list[dict[str, Any]] = [{"role": "user", "content": "lo"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASK: dict[str, Any] = {"model": "mock/model", "max_tokens": 400, "messages": USER}
DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}

__all__ = ["HERMES", "THINKING", "script"]


def serving(answer: str = "hello world", *, template: str = HERMES, **options: Any) -> Any:
    return serving_hermes(answer, template=template, **options)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of every event of a stream, whose type is the event's name. Fails on any other framing."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == "", "a stream ends with an empty line"
    found = []
    for block in blocks:
        name, data = block.split("\n")
        fields: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        found.append(fields)
    return found


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream tells, as Anthropic's SDKs add it up. Fails where events come out of order."""
    first, *between, ending, last = events
    assert (first["type"], ending["type"], last) == ("message_start", "message_delta", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    arguments: dict[int, str] = {}
    begun: int | None = None
    for event in between:
        if event["type"] == "content_block_start":
            assert begun is None and event["index"] == len(message["content"])
            begun = event["index"]
            message["content"].append(event["content_block"])
            continue
        assert event["index"] == begun
        if event["type"] == "content_block_stop":
            begun = None
            continue
        assert event["type"] == "content_block_delta"
        block, delta = message["content"][event["index"]], event["delta"]
        if delta["type"] == "signature_delta":
            block["signature"] = delta["signature"]
        elif delta["type"] == "input_json_delta":
            arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
        else:
            block[DELTAS[delta["type"]]] += delta[DELTAS[delta["type"]]]
    assert begun is None, "a block has no end"
    for index, written in arguments.items():
        message["content"][index]["input"] = json.loads(written)
    return {**message, **ending["delta"], "usage": ending["usage"]}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": None, "content": content}


async def both(app: ServedApp, **fields: Any) -> dict[str, Any]:
    """The whole answer, which is as documented and as the stream tells it."""
    whole = await app.post(PATH, {**ASK, **fields})
    assert whole.status_code == 200, whole.text
    Message.model_validate(whole.json(), strict=True)
    streamed = added_up(events_of(await app.post(PATH, {**ASK, **fields, "stream": True})))
    assert without_ids(streamed) == without_ids(whole.json())
    found: dict[str, Any] = whole.json()
    return found


async def asked(answer: str, template: str = HERMES, **fields: Any) -> dict[str, Any]:
    async with serving(answer, template=template) as app:
        return await both(app, **fields)


async def refused(**fields: Any) -> str:
    """The message of a 400."""
    async with serving() as app:
        response = await app.post(PATH, {**ASK, **fields})
        assert response.status_code == 400, response.text
        assert not app.engine.requests
        error: dict[str, Any] = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        return str(error["message"])


async def prompt_of(template: str = HERMES, **fields: Any) -> str:
    async with serving(template=template) as app:
        response = await app.post(PATH, {**ASK, **fields})
        assert response.status_code == 200, response.text
        return byte_level().decode(list(app.engine.requests[0].prompt), skip_special_tokens=False)
