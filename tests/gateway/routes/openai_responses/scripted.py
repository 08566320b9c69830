"""Responses to a model of Hermes' format that also reasons: what it answers, and the answers as clients read them."""

import json
from typing import Any

import httpx

from gateway.routes.openai_responses.answers import ResponseObject
from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.routes.openai.test_reasoning import THINKING
from tests.gateway.routes.openai.tool_chats import script
from tests.gateway.toys import byte_level

PATH = "/v1/responses"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME: dict[str, Any] = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}


def serving(answer: str = "hello world", *, template: str = THINKING, **options: Any) -> Any:
    return serve(script(answer), template=template, max_total_tokens=1500, **options)


async def create(app: ServedApp, **fields: Any) -> dict[str, Any]:
    """A whole response, which is as documented."""
    answer = await app.post(PATH, {"input": "lo", **fields})
    assert answer.status_code == 200, answer.text
    ResponseObject.model_validate(answer.json(), strict=True)
    response: dict[str, Any] = answer.json()
    return response


async def stream(app: ServedApp, **fields: Any) -> list[dict[str, Any]]:
    answer = await app.post(PATH, {"input": "lo", **fields, "stream": True})
    assert answer.status_code == 200, answer.text
    return events(answer)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream. Fails on any other framing, and unless they are numbered and named by their types."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    found: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        found.append(event)
    return found


def plain(output: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each item by its type and its text."""
    texts = {"message": "content", "reasoning": "content"}
    return [
        (each["type"], each[texts[each["type"]]][0]["text"] if each["type"] in texts else each["arguments"])
        for each in output
    ]


def without_ids(value: Any) -> Any:
    """`value` without what is new in each answer."""
    if isinstance(value, dict):
        new = ("id", "call_id", "created_at", "completed_at")
        return {key: without_ids(each) for key, each in value.items() if key not in new}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def prompt_of(app: ServedApp, number: int = -1) -> str:
    """The prompt of a request that the engine was sent."""
    return byte_level().decode(list(app.engine.requests[number].prompt), skip_special_tokens=False)


async def prompted(**fields: Any) -> str:
    async with serving() as app:
        await create(app, **fields)
        return prompt_of(app)


async def refused(**fields: Any) -> dict[str, Any]:
    """The error of a body that is refused with 400."""
    async with serving() as app:
        answer = await app.post(PATH, {"input": "lo", **fields})
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error
