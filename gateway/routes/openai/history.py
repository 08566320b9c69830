"""The messages of a chat as chat templates know them, whichever of OpenAI's notations a client uses."""

from collections.abc import Sequence
from typing import Any

from gateway.http.strict_json import strict_json
from gateway.routes.openai.messages import CalledFunction, Message


def template_messages(messages: Sequence[Message], *, knows_developer: bool) -> list[dict[str, Any]]:
    """`messages` for a template. The older `function_call` and its result become a call with an id and a tool's."""
    told: list[dict[str, Any]] = []
    legacy = 0  # calls so far that had no id
    for message in messages:
        fields = _fields(message, _role(message.role, knows_developer=knows_developer))
        if message.function_call is not None and not message.tool_calls:
            legacy += 1
            fields["tool_calls"] = [_call(_legacy_id(legacy), message.function_call)]
        if message.role == "function":
            fields["tool_call_id"] = _legacy_id(legacy)
        told.append(fields)
    return told


def _fields(message: Message, role: str) -> dict[str, Any]:
    reasoning = message.reasoning_content or message.reasoning
    optional: dict[str, Any] = {"name": message.name, "tool_call_id": message.tool_call_id}
    optional |= {"reasoning_content": reasoning, "reasoning": reasoning}  # templates know the one or the other
    optional |= {
        "tool_calls": [_call(each.id or "", each.function) for each in message.tool_calls or () if each.function]
    }
    return {"role": role, "content": message.for_template, **{key: value for key, value in optional.items() if value}}


def _role(role: str, *, knows_developer: bool) -> str:
    """`developer` is OpenAI's newer word for `system`, which few templates know; all that know tools know `tool`."""
    if role == "developer" and not knows_developer:
        return "system"
    return "tool" if role == "function" else role


def _legacy_id(number: int) -> str:
    return f"call{number:05}"  # nine characters, as Mistral's templates want


def _call(id: str, function: CalledFunction) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": function.name, "arguments": _arguments(function)}}


def _arguments(function: CalledFunction) -> Any:
    """The arguments as an object: most templates write them as JSON, and a text would be written as JSON twice. A text
    that holds no object stays as it is. A model may have written an argument twice: the last counts.
    """
    given = function.arguments
    if not isinstance(given, str):
        return given or {}
    try:
        value = strict_json(given or "{}", unique=False)
    except ValueError:
        return given
    return value if isinstance(value, dict) else given
