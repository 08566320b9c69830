"""The files of a model's directory about text, besides its tokenizer: JSON files and the chat template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file. Raises ValueError, naming the file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: must be a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name}: not UTF-8: {error}") from error


def find_template(directory: Path, config: dict[str, Any], *, chosen: bool = False) -> str | None:
    """The chat template of a model directory; None if it has none.

    It is `chat_template.jinja`, else the field `chat_template` of chat_template.json, else that of `config`, the
    tokenizer_config.json. If the operator has `chosen` another `config`, its template comes first. Of a list of named
    templates the one called "default" counts.

    Raises:
        ValueError: a file cannot be read; the message names it.
    """
    if chosen and (template := _template_in(config)) is not None:
        return template
    path = directory / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    return _template_in(read_json(directory / "chat_template.json")) or _template_in(config)


def _template_in(config: dict[str, Any]) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def special_tokens(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, from `config`, the tokenizer_config.json, or else from
    special_tokens_map.json, which older checkpoints have. Both write a token as a string or as an object.

    Raises:
        ValueError: a file cannot be read; the message names it.
    """
    return dict(_named_tokens(read_json(directory / "special_tokens_map.json"))) | dict(_named_tokens(config))


def _named_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if not name.endswith("_token"):
            continue
        if isinstance(value, dict) and isinstance(value.get("content"), str):
            yield name, value["content"]
        elif isinstance(value, str):
            yield name, value
