"""Tools, calls and results as words of a message, for a chat template that has no place for them.

A template without `tools` was written for a model that was not taught to call any. What the model must know of them is
then said in the chat itself, as TGI does: behind the last message that is not the model's own.
"""

import json
from collections.abc import Callable
from typing import Any

from gateway.text.content import Content, joined

Message = dict[str, Any]

SEPARATOR = "\n---\n"  # TGI's, between a message and the instruction behind it
INSTRUCTION = (
    "You may call the functions below, each described by its name and the JSON schema of its parameters. To call some, "
    'answer with nothing but a JSON list of calls: [{"name": "the function", "parameters": {…}}]. '
    "If none of them helps, answer in plain words."
)


def with_instruction(messages: list[Message], tool_prompt: str | None, tools: list[dict[str, Any]]) -> list[Message]:
    """`messages` with `tool_prompt`, by default ours, and the `tools` as JSON behind the last of someone else's."""
    prompt = INSTRUCTION if tool_prompt is None else tool_prompt
    functions = [tool.get("function", tool) for tool in tools]
    return with_text(messages, "\n".join([prompt, _json(functions)]))


def with_text(messages: list[Message], text: str) -> list[Message]:
    """`messages` with `text` behind the last that is not the assistant's; as a system message if there is none."""
    theirs = [at for at, message in enumerate(messages) if message["role"] != "assistant"]
    if not theirs:
        return [{"role": "system", "content": text}, *messages]
    at = theirs[-1]
    told = {**messages[at], "content": joined("", [messages[at]["content"], SEPARATOR + text])}
    return [*messages[:at], told, *messages[at + 1 :]]


def calls_as_text(message: Message, *, marked: bool) -> Message:
    """A message whose calls, if it has any, are written as JSON, as the model was told to write them; `marked` with the
    tags that most models know.
    """
    if not message.get("tool_calls"):
        return message
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    functions = [each["function"] for each in message["tool_calls"]]
    if marked:
        calls = "\n".join(f"<tool_call>\n{_json(_call(each, 'arguments'))}\n</tool_call>" for each in functions)
    else:
        calls = _json([_call(each, "parameters") for each in functions])
    return {**rest, "content": joined("\n", [message["content"], calls])}


def results_as_text(messages: list[Message]) -> list[Message]:
    """`messages` with the results of calls told by the user: those that follow each other in one message, since many
    templates want user and assistant to take turns.
    """
    told: list[Message] = []
    before = ""
    for message in messages:
        result = message["role"] == "tool"
        if result and before == "tool":
            told[-1] = {**told[-1], "content": joined("\n", [told[-1]["content"], _result(message)])}
        else:
            told.append({"role": "user", "content": _result(message)} if result else message)
        before = message["role"]
    return told


def changed_calls(message: Message, change: Callable[[Any], Any], content: str | None) -> Message:
    """A message with `change` made to the arguments of its calls, and `content` where it has calls but no text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = [{**each, "function": {**each["function"], "arguments": change(_arguments(each))}} for each in calls]
    return {**message, "content": message["content"] or content, "tool_calls": changed}


def _arguments(call: dict[str, Any]) -> Any:
    return call["function"]["arguments"]


def _call(function: dict[str, Any], arguments: str) -> dict[str, Any]:
    return {"name": function["name"], arguments: function["arguments"]}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _result(message: Message) -> Content:
    named = f" of {message['name']}" if message.get("name") else ""
    return joined("", [f"Result{named}: ", message["content"]])
