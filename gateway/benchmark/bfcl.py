"""Questions with tools from the Berkeley Function Calling Leaderboard, if the package bfcl-eval is installed.

Only its data is read. The live parts are used, which users have contributed; each question has the functions that its
own line offers, their schemas put into JSON schema's words.
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.benchmark.prompt import Prompt
from jaxengine.options.option import UsageError

PACKAGE = "bfcl_eval"
FILES = "data/*_live_simple.json", "data/*_live_multiple.json"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": ["string", "number", "boolean", "object"]}


def prompts(tokens: int) -> list[Prompt]:
    """All questions, with answers of at most `tokens`. Raises UsageError if the package is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    folders = (found.submodule_search_locations or []) if found else []
    files = [path for folder in folders for pattern in FILES for path in sorted(Path(folder).glob(pattern))]
    if not files:
        raise UsageError("--prompts bfcl needs the data of the package bfcl-eval: pip install --no-deps bfcl-eval")
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [_prompt(json.loads(line), tokens) for line in lines]


def _prompt(entry: Mapping[str, Any], tokens: int) -> Prompt:
    tools = [{"type": "function", "function": _function(each)} for each in entry["function"]]
    return Prompt(messages=tuple(entry["question"][0]), tools=tuple(tools), tokens=tokens, fixed=False)


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", function["name"])[:64]  # all that OpenAI takes
    return {
        "name": name,
        "description": function.get("description", ""),
        "parameters": _schema(function["parameters"]),
    }


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The types' names, at every depth; properties may be called "type" themselves."""
    made = {key: value for key, value in schema.items() if key not in ("default", "optional", "format")}
    if isinstance(kind := schema.get("type"), str):
        made["type"] = TYPES.get(kind, kind)
    if isinstance(properties := schema.get("properties"), Mapping):
        made["properties"] = {name: _schema(each) for name, each in properties.items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            made[key] = _schema(schema[key])
    return made
