"""Lists that a request may also write as a text: breakers as JSON, as KoboldCpp takes them, and ids with commas between
them, as text-generation-webui does.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.http.strict_json import NotStrictJson, strict_json

MAX_BREAKERS, MAX_BREAKER_CHARACTERS = 64, 64
MAX_BANS = 1024  # in the request; of them, the engine takes as many as biases
ID = re.compile("[0-9]{1,9}")


def _breakers(value: Any) -> Any:
    """The list that a text is as JSON; None if it is empty. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return strict_json(value) if value else None
    except NotStrictJson:
        raise ValueError("must be a list of texts, or a text that is such a list as JSON") from None


def _ids(value: Any) -> Any:
    """The list of the ids in a text. Raises ValueError."""
    if not isinstance(value, str):
        return value
    ids = [each.strip() for each in value.split(",", MAX_BANS)] if value.strip() else []
    if not all(ID.fullmatch(each) for each in ids):
        raise ValueError(f"must be a list, or a text, of at most {MAX_BANS} token ids with commas between them")
    return [int(each) for each in ids]


def _list_or_text(**items: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "array", **items}, {"type": "string"}, {"type": "null"}]})


Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
Breaker = Annotated[str, Field(min_length=1, max_length=MAX_BREAKER_CHARACTERS)]
Breakers = Annotated[
    Annotated[list[Breaker], Field(max_length=MAX_BREAKERS)] | None,
    BeforeValidator(_breakers),
    _list_or_text(items={"type": "string", "minLength": 1, "maxLength": MAX_BREAKER_CHARACTERS}, maxItems=MAX_BREAKERS),
]
Bans = Annotated[
    Annotated[list[Id], Field(max_length=MAX_BANS)] | None,
    BeforeValidator(_ids),
    _list_or_text(items={"type": "integer", "minimum": 0}, maxItems=MAX_BANS),
]
