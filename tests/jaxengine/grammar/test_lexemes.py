"""How much it takes to find the parts of a grammar that a lexer may read: an engine does so for each text."""

import random
import sys
from typing import Any

import pytest

from jaxengine.grammar.gbnf import lark


def chain(length: int, rule: str, last: str) -> str:
    rules = [rule.format(at, at + 1, chr(0x4E00 + at)) for at in range(length)] + [f"r{length} ::= {last}"]
    random.Random(0).shuffle(rules)
    return "\n".join(["root ::= r0", *rules])


def calls(text: str) -> int:
    """Of Python's functions that reading the grammar makes."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        lark(text)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    ("rule", "last"),
    [("r{} ::= [a-z] r{}", '"x"'), ('r{} ::= r{}? "{}"', '"x"'), ("r{} ::= r{} [a-z]", 'root | "x"')],
    ids=["regular", "each may be left out", "recursive"],
)
def test_a_chain_of_twice_as_many_rules_in_any_order_takes_about_twice_as_much(rule: str, last: str) -> None:
    few, many = (calls(chain(length, rule, last)) for length in (80, 160))
    assert many < 2.5 * few
