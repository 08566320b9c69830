"""What a number may be: documented with its field, and checked by `rules.py`, as each dialect words its own errors."""

from dataclasses import dataclass

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


@dataclass(frozen=True)
class Range:
    """Stands in the annotation of a field that may be null; the limits are the first and the last value allowed."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        documented = handler(schema)
        documented["anyOf"][0] |= {"minimum": self.low, "maximum": self.high}
        return documented
