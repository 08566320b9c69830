"""A text that is written under a regex matches it whole, as Python reads it.

Where Python and Rust differ: to Rust a combining mark is a letter of a word, and its tables hold characters that are
newer than Python's.
"""

import json
import re
import unicodedata

import pytest

from gateway.grammar.regex import checked
from tests.grammars.random_text import RandomWriter
from tests.processes import ROOT

pytestmark = pytest.mark.slow

ANSWERS = 8
PATTERNS = json.loads((ROOT / "tests/goldens/regexes.json").read_text())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_text_matches_its_regex(pattern: str) -> None:
    texts = RandomWriter(free=10).texts("regex", checked(pattern), ANSWERS)
    assert texts
    assert [text for text in texts if not matches(pattern, text)] == []


def matches(pattern: str, text: str) -> bool:
    return bool(re.fullmatch(pattern, text)) or (("\\w" in pattern or "\\d" in pattern) and any(map(unlike, text)))


def unlike(character: str) -> bool:
    """Whether it is not in the same classes in Python as in Rust."""
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cn")
