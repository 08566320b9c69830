"""Formats told from chat templates, of which tests/goldens/chat_templates.json lists the marks that each one holds.

They are the templates of llama.cpp's collection (of llama-cpp-python 0.3.36). What each model writes is known from its
own documentation; None is a format that is not read here.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.parsing.detection import detect
from gateway.parsing.reasoning_formats import REASONING_FORMATS, reasoning_format
from gateway.parsing.tool_formats import TOOL_FORMATS, tool_format

MODELS = json.loads((Path(__file__).parents[2] / "goldens" / "chat_templates.json").read_text(encoding="utf-8"))


def names(template: str | None, tokens: list[str]) -> list[str | None]:
    return [each.name if each is not None else None for each in detect(template, tokens.__contains__)]


@pytest.mark.parametrize("model", MODELS)
def test_a_model_s_formats_are_told_from_its_template(model: str) -> None:
    marks: dict[str, Any] = MODELS[model]
    assert names(" ".join(marks["texts"]), marks["tokens"]) == [marks["tools"], marks["reasoning"]]


def test_nothing_is_read_where_nothing_tells_a_format() -> None:
    assert names(None, []) == names("{{ messages }}", []) == [None, None]


def test_every_format_goes_by_its_name_and_aliases() -> None:
    assert {"hermes", "mistral", "openai", "qwen3_xml", "llama4_json"} <= set(TOOL_FORMATS)
    assert {tool_format(name).name for name in TOOL_FORMATS} <= set(TOOL_FORMATS)
    assert {reasoning_format(name).name for name in REASONING_FORMATS} <= set(REASONING_FORMATS)
