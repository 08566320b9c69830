"""Numbers that a client may also write as texts, as KoboldCpp takes them: `"0.7"`."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

DIGITS = 18  # of a text; no field needs more
_NUMBER = rf"-?[0-9]{{1,{DIGITS}}}(\.[0-9]{{1,{DIGITS}}})?"


def _number(value: Any) -> Any:
    """The number that a text is; anything else as it is, for pydantic to judge."""
    if not isinstance(value, str) or not re.fullmatch(_NUMBER, value):
        return value
    return float(value) if "." in value else int(value)  # a seed may have more digits than a double


def _whole(value: Any) -> Any:
    """Likewise, a whole number however it is written: 5.0 is 5."""
    number = _number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _or_text(kind: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind}, {"type": "string", "pattern": f"^{_NUMBER}$"}]})


Number = Annotated[float, BeforeValidator(_number), _or_text("number")]
Whole = Annotated[int, BeforeValidator(_whole), _or_text("integer")]


def at_least(low: int) -> Any:
    """The least that a `Whole` may be, which is documented too."""
    return Field(ge=low, json_schema_extra={"minimum": low})
