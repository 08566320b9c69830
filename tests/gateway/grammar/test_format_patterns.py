"""Formats outside of JSON: what their regexes let through llguidance lets through in JSON."""

import json

import pytest

from gateway.grammar.format_patterns import FORMAT_PATTERNS
from gateway.grammar.formats import ENFORCED_FORMATS
from tests.gateway.parsing.walks import accepts, vocabulary, walk

ONES = {
    "date": ["2026-02-28", "1999-12-31"],
    "time": ["23:59:59Z", "01:02:03.456+01:00"],
    "date-time": ["2026-11-23T04:05:06Z", "2000-02-29t00:00:00.1-05:30"],
    "duration": ["P1Y2M3DT4H5M6S", "P3W", "PT36H", "P23DT23H", "P1M"],
    "email": ["a.b+c@example.org", "x@a-b.co.uk", "o'neil@example.com"],
    "hostname": ["localhost", "a-b.example.com"],
    "ipv4": ["192.168.0.1", "255.255.255.255"],
    "ipv6": ["::", "::1", "1::", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "uri": [
        "https://a.example:8080/b/c%20d?e=f&g#h",
        "mailto:a@b.c",
        "urn:isbn:0451450523",
        "http://1.2.3.4",
        "file:/a",
    ],
}
NOT = {
    "date": ["2026-13-01", "2026-04-31", "26-01-01"],
    "time": ["24:00:00Z", "12:00Z", "12:00:00"],
    "date-time": ["2026-11-23 04:05:06Z", "2026-11-23"],
    "duration": ["P", "PT", "1D", "P1YT", "P1S"],
    "email": ["a", "@b.c", "a@", "a..b@c.d", ".a@b.c"],
    "hostname": ["", "-a", "a-", "a..b", "a_b"],
    "ipv4": ["256.1.1.1", "1.2.3", "01.2.3.4"],
    "ipv6": [":::", "1:2:3:4:5:6:7", "12345::", "1::2::3", ":1"],
    "uuid": ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"],
    "uri": ["a", "/a", "http://a b", "https://[x", "1a:b"],
}


def grammar(name: str) -> str:
    return "%llguidance {}\nstart: TEXT\nTEXT: /" + FORMAT_PATTERNS[name].replace("/", r"\/") + "/"


def test_every_format_that_is_enforced_has_a_regex() -> None:
    assert FORMAT_PATTERNS.keys() == ENFORCED_FORMATS.keys() == ONES.keys() == NOT.keys()


@pytest.mark.parametrize("name", FORMAT_PATTERNS)
def test_what_is_of_a_format_is_told_from_what_is_not(name: str) -> None:
    words = vocabulary()
    assert [text for text in ONES[name] if not accepts(words, grammar(name), text)] == []
    assert [text for text in NOT[name] if accepts(words, grammar(name), text)] == []


@pytest.mark.parametrize("name", FORMAT_PATTERNS)
def test_what_a_format_s_regex_lets_through_fits_in_json(name: str) -> None:
    words, schema = vocabulary(), {"type": "string", "format": name}
    for seed in range(12):
        text = walk(words, grammar(name), seed, ["@a.b", ":", "::", "/"], end=0.15)
        assert accepts(words, f"%llguidance {{}}\nstart: %json {json.dumps(schema)}", json.dumps(text)), text
