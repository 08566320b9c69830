"""Chats with tools: a model of Hermes' format, what it answers, and the answers as OpenAI's clients read them."""

import json
from typing import Any

from gateway.routes.openai.responses import ChatCompletion
from tests.engine_mock import EOS
from tests.gateway.fixtures import events, serve
from tests.gateway.routes.openai.test_chat import USER, deltas
from tests.gateway.toys import byte_level

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
HERMES = (
    "{% if tools %}<|im_start|>system\n<tool_call> {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ROME = PARIS.replace("Paris", "Rome")
HISTORY: list[dict[str, Any]] = [
    *USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "22 C"}]},
]


def script(text: str) -> list[int]:
    return [*byte_level().encode(text, add_special_tokens=False).ids, EOS]


def serving(answer: str = "hello world", *, template: str = HERMES, **options: Any) -> Any:
    return serve(script(answer), template=template, max_total_tokens=1500, **options)


async def asked(answer: str, template: str = HERMES, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The choice that a scripted answer becomes, and the stream of the same choice."""
    body = {"messages": USER, "tools": [WEATHER, TIME], **fields}
    async with serving(answer, template=template) as app:
        whole = await app.post(PATH, body)
        assert whole.status_code == 200, whole.text
        ChatCompletion.model_validate(whole.json(), strict=True)  # as documented
        stream = events(await app.post(PATH, {**body, "stream": True}))
        return whole.json()["choices"][0], deltas(stream)


def joined(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """A message added up from its deltas as OpenAI's SDKs do: strings joined, calls by index."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for choice in stream:
        delta = dict(choice["delta"])
        for call in delta.pop("tool_calls", []):
            into = calls.setdefault(call["index"], {"id": "", "type": "", "name": "", "arguments": ""})
            into["id"] += call.get("id", "")
            into["type"] = call.get("type", into["type"])
            for name, value in call["function"].items():
                into[name] += value
        for name, value in delta.items():
            message[name] = message.get(name, "") + value
    return message | ({"calls": [calls[index] for index in sorted(calls)]} if calls else {})


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message["tool_calls"]]


async def prompt_of(template: str = HERMES, **fields: Any) -> str:
    async with serving(template=template) as app:
        response = await app.post(PATH, {"messages": USER, **fields})
        assert response.status_code == 200, response.text
        return byte_level().decode(list(app.engine.requests[0].prompt), skip_special_tokens=False)
