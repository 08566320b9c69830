"""Items as the messages of a chat.

A turn of the assistant is several items: reasoning, text and calls. They become one message, as the model wrote them,
so that the prompt begins as the prompt and the answer before it, as far as the chat template lets it: the engine then
finds the prefix in its cache.
"""

from collections.abc import Sequence
from typing import Any

from gateway.routes.openai_responses.input_items import IMAGE, Item
from gateway.text.content import joined

ORDERS = ("system", "developer")  # roles of instructions

Message = dict[str, Any]


def messages(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """The chat that `items` come to. Instructions, and those that `items` begin with, are one message: many templates
    take one alone, and as the first.
    """
    told: list[Message] = []
    for item in items:
        _add(told, item)
    if instructions:
        orders = next((at for at, each in enumerate(told) if each["role"] not in ORDERS), len(told))
        texts = [instructions, *(each["content"] for each in told[:orders])]
        told[:orders] = [{"role": "system", "content": joined("\n\n", texts)}]
    return told


def _add(told: list[Message], item: Item) -> None:
    match item["type"]:
        case "reasoning":
            if text := reasoning_text(item):  # of OpenAI's own models an item often says nothing
                _turn(told, "reasoning", "content", "tool_calls")["reasoning"] = text
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            _turn(told).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            told.append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])})
        case "message" if item["role"] == "assistant":
            _turn(told, "content", "tool_calls")["content"] = _text(item["content"])
        case "message":
            told.append({"role": item["role"], "content": _content(item["content"])})


def _turn(told: list[Message], *begun: str) -> Message:
    """The assistant's message at the end of `told`; a new one if the last is of another role, or has one of `begun`."""
    if not told or told[-1]["role"] != "assistant" or any(name in told[-1] for name in begun):
        told.append({"role": "assistant"})
    return told[-1]


def reasoning_text(item: Item) -> str:
    return _text(item["content"] or item["summary"])


def _content(parts: str | list[Item]) -> str | list[Item]:
    """A text; with images, the parts of a chat's message."""
    if isinstance(parts, str) or not any(part["type"] == IMAGE for part in parts):
        return _text(parts)
    return [_image(part) if part["type"] == IMAGE else {"type": "text", "text": _text([part])} for part in parts]


def _image(part: Item) -> Item:
    return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}


def _text(parts: str | list[Item]) -> str:
    if isinstance(parts, str):
        return parts
    return "\n".join(part["refusal" if part["type"] == "refusal" else "text"] for part in parts)
