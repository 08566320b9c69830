"""Prompts from a file of JSON lines.

A line is an object with `prompt`, a text, or `messages` and perhaps `tools`, as of /v1/chat/completions. `max_tokens`
is the length of the answer, if it is not that of --decode-length. A line of `messages` ends where the model ends it.
"""

import json
from pathlib import Path
from typing import Any

from gateway.benchmark.prompt import Prompt
from jaxengine.options.option import UsageError

FIELDS = ("prompt", "messages", "tools", "max_tokens")


def read(path: Path, tokens: int) -> list[Prompt]:
    """Its prompts, with answers of `tokens` where a line says nothing else. Raises UsageError naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise UsageError(
            f"--prompts {path}: must be synthetic, shared-prefix, bfcl, or a file of JSON lines that can be read"
        ) from None
    found = [_prompt(path, number, line, tokens) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"--prompts {path} holds no prompt")
    if len({each.is_chat for each in found}) > 1:
        raise UsageError(f"--prompts {path}: all lines must have prompt, or all must have messages")
    return found


def _prompt(path: Path, number: int, line: str, tokens: int) -> Prompt:
    where = f"--prompts {path}, line {number}:"
    try:
        fields = json.loads(line)
    except ValueError:
        raise UsageError(f"{where} is no JSON") from None
    if not isinstance(fields, dict) or ("prompt" in fields) == ("messages" in fields):
        raise UsageError(f"{where} must be an object with either prompt or messages")
    if unknown := fields.keys() - set(FIELDS):
        raise UsageError(f"{where} has the unknown field {min(unknown)!r}; known are {', '.join(FIELDS)}")
    length = fields.get("max_tokens", tokens)
    if type(length) is not int or length < 1:
        raise UsageError(f"{where} max_tokens must be a whole number from 1 on")
    return _asked(where, fields, length)


def _asked(where: str, fields: dict[str, Any], length: int) -> Prompt:
    text, messages, tools = fields.get("prompt", ""), fields.get("messages", []), fields.get("tools", [])
    if "prompt" in fields and (not isinstance(text, str) or not text):
        raise UsageError(f"{where} prompt must be a text that is not empty")
    for name, value in (("messages", messages), ("tools", tools)):
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise UsageError(f"{where} {name} must be a list of objects")
    if "messages" in fields and not messages:
        raise UsageError(f"{where} messages must not be empty")
    return Prompt(text, tuple(messages), tuple(tools), length, fixed=not messages)
