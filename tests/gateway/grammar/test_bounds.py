"""Of numbers, those are written that are within a schema's bounds. Decimals judge."""

import operator
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.grammar.json_schema import guided
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.grammar.llguidance_bytes import Refused, allows

HOLDS = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}
BOUNDS = [0, 1, -1, 0.5, -0.5, 1.5, -1.5]
NUMBERS = ["0", "-0", "1", "-1", "0.5", "-0.5", "1.5", "-1.5", "0.25", "-0.25", "1.25", "-1.25"]


def allowed(schema: dict[str, Any], number: str) -> bool:
    return allows(pb.Grammar(json_schema=guided(schema, param="field")), number)


@pytest.mark.parametrize("names", [*product(["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"])])
def test_of_all_pairs_of_bounds_the_numbers_between_them_are_written_and_no_others(names: tuple[str, str]) -> None:
    pairs = [pair for pair in product(BOUNDS, BOUNDS) if pair[0] < pair[1]]
    wrong = []
    for pair, number in product(pairs, NUMBERS):
        bounds = dict(zip(names, pair, strict=True))
        right = all(HOLDS[name](Decimal(number), Decimal(repr(bound))) for name, bound in bounds.items())
        if number != "-0" or not right:  # llguidance writes 0 so only below bounds of one sign
            wrong += [(bounds, number)] * (allowed({"type": "number", **bounds}, number) is not right)
    assert not wrong


def test_draft_4_says_true_beside_the_bound_that_is_excluded() -> None:
    schema = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.5}
    assert allowed(schema, "0.25")
    assert not allowed(schema, "0")


def test_whole_numbers_keep_their_bounds() -> None:
    schema = {"type": "integer", "exclusiveMinimum": 0, "maximum": 1.5}
    assert [number for number in ("0", "1", "2") if allowed(schema, number)] == ["1"]
    with pytest.raises(Refused, match="no integer"):
        allowed({"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5}, "0")


def test_a_huge_multiple_is_refused_in_few_words() -> None:
    with pytest.raises(RequestError) as caught:
        guided({"multipleOf": 1e300}, param="field")
    assert "10000" in caught.value.message and len(caught.value.message) < 200
