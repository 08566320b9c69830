"""TGI's `grammar`: its notation, and its rules in its words.

TGI demands `properties` at the top of a schema, and so do we: its clients may rely on the refusal. A `json_object`
without a value, which TGI refuses by mistake, is any JSON object.
"""

from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from gateway.errors import GRAMMAR, Kind, RequestError
from gateway.grammar import json_schema
from gateway.grammar.constraint import Constraint
from gateway.grammar.json_style import OF_TGI
from gateway.http.body import StrictModel

FIELD = "parameters.grammar.value"
_VALUE = {"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]}


class Grammar(StrictModel):
    type: Literal["json", "json_object", "regex", "json_schema"]
    value: Annotated[Any, WithJsonSchema(_VALUE)] = None


def constraint(grammar: Grammar | None, *, supported: bool) -> Constraint | None:
    """What `grammar` asks for. Raises RequestError."""
    if grammar is None:
        return None
    if not supported:
        raise RequestError.invalid("grammar is not supported", GRAMMAR)
    if grammar.type == "regex":
        return Constraint.of("regex", _typed(grammar.value, str, "a string"), GRAMMAR)
    schema = grammar.value
    if grammar.type == "json_schema":
        schema = _typed(schema, dict, "an object with a schema").get("schema")
    if schema is None and grammar.type == "json_object":
        return Constraint.of("json_object", True, GRAMMAR, style=OF_TGI)
    return Constraint.of("json", _with_properties(schema), GRAMMAR, style=OF_TGI)


def _typed(value: Any, kind: type, words: str) -> Any:
    if not isinstance(value, kind):
        raise RequestError(Kind.SHAPE, f"{FIELD} must be {words}", param=FIELD)
    return value


def _with_properties(schema: Any) -> dict[str, Any]:
    """The schema as an object with `properties`."""
    if schema is None:
        raise RequestError(Kind.SHAPE, f"{FIELD} is required", param=FIELD)
    if not isinstance(schema, str | dict):
        raise RequestError.invalid("grammar is not supported", GRAMMAR)
    try:
        schema = json_schema.parsed(schema) if isinstance(schema, str) else schema
    except ValueError as error:
        raise RequestError.invalid(f"grammar is not valid: {error}", GRAMMAR) from None
    if not isinstance(schema, dict) or "properties" not in schema:
        raise RequestError.invalid("grammar is not valid: Grammar must have a 'properties' field", GRAMMAR)
    return schema
