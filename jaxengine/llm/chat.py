"""Chats as prompts: the model's chat template, by the code of the server.

Tools are told to the model here, and its calls stay text: what takes them apart belongs to the server.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.text.chat_template import ChatTemplate, TemplateError
from gateway.text.model_files import find_template, read_json, special_tokens

Message = Mapping[str, Any]
Chat = Sequence[Message]


def template_of(directory: Path, max_characters: int, source: str | None = None) -> ChatTemplate:
    """The template of the model in `directory`, or `source` with that model's special tokens.

    Raises:
        ValueError: there is none, or it is no template.
    """
    config = read_json(directory / "tokenizer_config.json")
    source = source or find_template(directory, config)
    if source is None:
        raise ValueError("the model has no chat template")
    try:
        return ChatTemplate(source, special_tokens(directory, config), max_characters)
    except TemplateError as error:
        raise ValueError(str(error)) from error


def rendered(template: ChatTemplate, chat: Chat, **how: Any) -> str:
    """The prompt of `chat`; `how` is as `ChatTemplate.render` has it. Raises ValueError if the template refuses it."""
    try:
        return template.render([_message(each) for each in chat], **how)
    except TemplateError as error:
        raise ValueError(str(error)) from error


def check_chat(chat: Chat) -> None:
    """Raises ValueError if it is none."""
    if isinstance(chat, str) or not all(isinstance(message, Mapping) and "role" in message for message in chat):
        raise ValueError(f"a chat is a list of messages such as {{'role': 'user', 'content': …}}, got {chat!r}")


def chats_of(messages: Chat | Sequence[Chat]) -> list[Chat]:
    """One chat, or several, as several."""
    several = bool(messages) and not isinstance(messages[0], Mapping)
    return [*messages] if several else [messages]  # type: ignore[list-item]


def _message(given: Message) -> dict[str, Any]:
    """As templates expect it: the arguments of calls, which OpenAI writes as JSON in a text, as what they are."""
    calls = [_call(each) for each in given.get("tool_calls") or ()]
    return {"content": "", **given, "tool_calls": calls} if calls else {**given}


def _call(given: Mapping[str, Any]) -> dict[str, Any]:
    function = {**given["function"]}
    if isinstance(arguments := function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(arguments)
        except ValueError:
            raise ValueError(f"arguments of the call of {function.get('name')!r} must be JSON") from None
    return {**given, "function": function}
