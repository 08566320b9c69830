"""A schema's pattern as a regex of whole texts, beside Python's search; texts as regexes of exactly themselves."""

import random
import re

import pytest

from gateway.grammar.regex import escaped, whole

PATTERNS = [
    *("a", "^a", "a$", "^a$", "^a|b$", "a|^b$|c", "^(a|b)$", "(^a|b$)", "(?:^a$)|^$", "((^a$)|(^b+$))", "(?:a|b)c"),
    *("^[$^|()]a", r"\$a|\^b", r"a\|b$", "^(?:ab)*$", "(a)(b)", "^(a)|(b)$", "[a|b]$", ""),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_whole_texts_where_it_is_found(pattern: str) -> None:
    draw = random.Random(pattern)
    found = 0
    for _ in range(2000):
        text = "".join(draw.choice("aabbc$^|(") for _ in range(draw.randrange(6)))
        expected = re.search(pattern, text) is not None
        assert (re.fullmatch(whole(pattern), text) is not None) is expected, text
        found += expected
    assert found


@pytest.mark.parametrize(
    "pattern", ["a^b", "a$b", r"\ba", r"a\b", "(?=a)a", "(?<!a)b", "(?!a)", "(^a)b", "(^a)+", r"\Aa"]
)
def test_a_pattern_that_looks_around_itself_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="looks at what is around it"):
        whole(pattern)


def test_a_text_escaped_is_a_regex_of_itself() -> None:
    text = "".join(map(chr, range(1, 127))) + "é"
    assert re.fullmatch(escaped(text), text)
