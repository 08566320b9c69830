"""A client's JSON schema as llguidance takes it: checked, without what has no effect, with our options.

What a schema asks is enforced or refused by name; nothing is ignored. `keywords.py` says what becomes of each keyword,
`schema_reader.py` reads them.
"""

import json
from typing import Any

from gateway.errors import RequestError
from gateway.grammar.json_style import PLAIN, JsonStyle
from gateway.grammar.schema_reader import SchemaReader
from gateway.http.strict_json import NotStrictJson, depth_exceeds, strict_json

MAX_GIVEN_CHARACTERS = 262_144  # as the client writes it
MAX_CHARACTERS = 65_536  # without annotations
MAX_DEPTH = 64


def guided(schema: Any, *, param: str, style: JsonStyle = PLAIN) -> str:
    """`schema` as JSON text with llguidance's options.

    Args:
        schema: a dictionary or bool, which is not changed, or JSON text.
        param: the field it came in.

    Raises:
        RequestError: it is no schema, too large, or asks for what cannot be enforced.
    """
    try:
        return enforced(schema, style)
    except ValueError as error:
        raise RequestError.invalid(f"{param} is not valid: {error}", param) from None


def enforced(schema: Any, style: JsonStyle) -> str:
    """As `guided`. Raises ValueError."""
    root = SchemaReader(_own(schema), closed=style.closed).root
    return _written({**root, "x-guidance": _options(style.spaces)})


def _options(spaces: str) -> dict[str, Any]:
    between = {"whitespace_pattern": spaces} if spaces else {"whitespace_flexible": False}
    return {**between, "lenient": False, "coerce_one_of": False}


def _written(schema: dict[str, Any]) -> str:
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(text) > MAX_CHARACTERS:
        length = f"the schema has {len(text)} characters without its annotations"
        raise ValueError(f"{length}, at most {MAX_CHARACTERS} are allowed")
    return text


def _own(schema: Any) -> dict[str, Any]:
    """A copy of the schema, which is an object."""
    if isinstance(schema, str):
        schema = parsed(schema)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ValueError("the schema allows nothing" if schema is False else "a schema must be an object")
    if depth_exceeds(schema, MAX_DEPTH):
        raise ValueError(f"the schema nests deeper than {MAX_DEPTH} levels")
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    return copy


def parsed(text: str) -> Any:
    """The JSON value of `text`. Raises ValueError."""
    if len(text) > MAX_GIVEN_CHARACTERS:
        raise ValueError(f"the text has {len(text)} characters, at most {MAX_GIVEN_CHARACTERS} are allowed")
    try:
        return strict_json(text)
    except NotStrictJson as error:
        raise ValueError(f"the text {error}") from None


ANY_OBJECT = guided({"type": "object"}, param="")
