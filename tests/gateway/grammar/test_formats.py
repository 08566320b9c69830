"""Days and times that do not exist cannot be written."""

import json

import pytest
from jsonschema.validators import Draft202012Validator

from gateway.grammar.json_schema import guided
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.grammar.llguidance_bytes import allows

DAYS = ("2023-02-28", "2024-02-29", "2000-02-29", "2023-04-30", "2023-12-31", "0004-02-29")
NO_DAYS = ("2023-02-29", "1900-02-29", "2024-02-30", "2023-04-31", "2023-13-01", "0000-01-01")
TEXTS = {
    "date": (DAYS, NO_DAYS),
    "time": (("12:00:59Z", "23:59:59.5+05:30"), ("12:00:60Z", "24:00:00Z", "12:60:00Z", "12:00:00")),
    "date-time": (
        (*(f"{day}T12:00:00Z" for day in DAYS), "2023-01-01t00:00:59.25-08:00"),
        (*(f"{day}T12:00:00Z" for day in NO_DAYS), "2023-01-01T12:00:60Z"),
    ),
}
CASES = [
    (name, text, good)
    for name, both in TEXTS.items()
    for texts, good in zip(both, (True, False), strict=True)
    for text in texts
]


@pytest.mark.parametrize(("name", "text", "good"), CASES)
def test_a_moment_can_be_written_if_it_exists(name: str, text: str, good: bool) -> None:
    schema = {"type": "string", "format": name, "pattern": "[0-9]"}
    grammar = pb.Grammar(json_schema=guided(schema, param="field"))
    assert allows(grammar, json.dumps(text)) is good
    assert Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(text) is good
