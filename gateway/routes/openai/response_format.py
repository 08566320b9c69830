"""`response_format`: OpenAI's notation, and TGI's and llama.cpp's where they go beyond it."""

import re
from typing import Any

from gateway.errors import RequestError
from gateway.grammar.constraint import Constraint
from gateway.grammar.json_style import OF_TGI, PLAIN, JsonStyle

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
KINDS = ("text", "json_object", "json_schema", "regex", "grammar", "structural_tag")
_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_NAMED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
        "schema": {"type": "object"},
        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "description": _TEXT,
    },
}
DOCUMENTED = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": [*KINDS, "json"]},
        "json_schema": _NAMED,
        "grammar": {"type": "string"},
        "format": {"type": "object"},
        "structures": {"type": "array", "items": {"type": "object"}},
        "triggers": {"type": "array", "items": {"type": "string"}},
    },
}


def constraint(fields: dict[str, Any], param: str, *, style: JsonStyle | None = None) -> Constraint | None:
    """What the field `param` asks for; None for plain text. Raises RequestError.

    style: of all JSON in the text; None for that of the notation.
    """
    kind, value = fields.get("type"), fields.get("value")
    if value is not None and kind in ("json", "json_object", "json_schema", "regex"):
        return _of_tgi(kind, value, param, style or OF_TGI)
    if kind in ("json", "regex"):
        raise RequestError.invalid(f"{param}.value is required with the type {kind}", f"{param}.value")
    style = style or PLAIN
    match kind:
        case "text":
            return None
        case "json_object":
            return _of_schema(fields.get("schema"), param, style)  # of llama.cpp
        case "json_schema":
            return _of_schema(_named(fields.get("json_schema", fields), f"{param}.json_schema"), param, style)
        case "grammar":
            return Constraint.of("grammar", _checked(fields, "grammar", str, "a string", param), param, style=style)
        case "structural_tag":  # of vLLM
            return Constraint.of("structural_tag", fields, param, style=style)
    raise RequestError.invalid(f"{param}.type must be one of {', '.join(KINDS)}", f"{param}.type")


def _named(named: Any, field: str) -> Any:
    """The schema of a schema with its name."""
    if not isinstance(named, dict):
        raise RequestError.invalid(f"{field} must be an object", field)
    if not {"name", "schema"} & named.keys():
        raise RequestError.invalid(f"{field} must have a name and a schema", field)
    name = named.get("name")
    if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
        raise RequestError.invalid(f"{field}.name must be 1 to 64 letters, digits, _ or -", f"{field}.name")
    _checked(named, "strict", bool | None, "true or false", field)
    _checked(named, "description", str | None, "a string", field)
    return named.get("schema")


def _of_schema(schema: Any, param: str, style: JsonStyle) -> Constraint:
    """JSON of this schema; any object if there is none."""
    if schema is None:
        return Constraint.of("json_object", True, param, style=style)
    return Constraint.of("json", schema, param, style=style)


def _of_tgi(kind: str, value: Any, param: str, style: JsonStyle) -> Constraint:
    if kind == "regex":
        return Constraint.of("regex", _checked({"value": value}, "value", str, "a string", param), param)
    schema = value.get("schema") if kind == "json_schema" and isinstance(value, dict) else value
    return Constraint.of("json", schema, param, style=style)


def _checked(fields: dict[str, Any], name: str, kind: Any, words: str, param: str) -> Any:
    if not isinstance(fields.get(name), kind):
        raise RequestError.invalid(f"{param}.{name} must be {words}", f"{param}.{name}")
    return fields.get(name)
