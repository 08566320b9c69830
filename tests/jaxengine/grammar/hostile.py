"""Grammars that ask too much: of the compiler's time, its memory, its stack, or its patience with nonsense."""

import json
import random
from collections.abc import Iterator
from typing import Any

from jaxengine.grammar.grammar import Grammar, Kind

KINDS: tuple[Kind, ...] = ("regex", "json_schema", "lark", "gbnf")
SLOW = Grammar("json_schema", '{"type": "integer", "multipleOf": 1000003}')  # tens of seconds if it may
HUGE = Grammar("regex", "\\w" * 100_000)
DEEP = Grammar("lark", "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(2000)) + '\nr2000: "a"')

# Letters behind these may be grouped in very many ways.
ZEROS = "0" * 60
LATE = Grammar("lark", f'start: "{ZEROS}" x\nx: {" ".join("x" * 16)} | "a" |')


def slow(number: int) -> Grammar:
    """One of many, all different, that take tens of seconds if they may."""
    return Grammar("json_schema", json.dumps({"type": "integer", "multipleOf": 1_000_003 + 2 * number}))


def grammars() -> list[Grammar]:
    """More than three hundred, always the same."""
    found = [
        *(Grammar("regex", text) for text in _regexes()),
        *(Grammar("json_schema", text if isinstance(text, str) else json.dumps(text)) for text in _schemas()),
        *(Grammar("lark", text) for text in _larks()),
        *(Grammar("gbnf", text) for text in _gbnfs()),
    ]
    return found + list(_noise(40))


def _regexes() -> Iterator[str]:
    for low, high in ((10, 10), (100, 100), (1000, 1000), (1, 100), (0, 1000), (30, 60)):
        for depth in (2, 3, 4):
            yield "(" * depth + "a" + f"){{{low},{high}}}" * depth
    for many in (20, 30, 100, 1000, 10_000, 100_000, 10**9):
        yield f".*a.{{{many}}}"
        yield f"[ab]*a[ab]{{{many}}}"
        yield f"\\w{{1,{many}}}"
        yield f"(?i)\\p{{L}}{{{many}}}"
        yield "|".join(f"[a-z]*{chr(97 + n)}[a-z]{{{many}}}" for n in range(16))
        yield f"(a|b|ab){{{many}}}c"
    for deep in (100, 249, 1000, 10_000, 100_000):
        yield "(" * deep + "a" + ")" * deep
        yield "(" * deep
        yield "(?:a|" * deep + "b" + ")*" * deep
        yield "a" * deep
        yield "[" * deep
        yield "a?" * deep + "a" * deep
        yield "|".join(f"w{n}" for n in range(deep))
        yield "".join(f"(?P<n{n}>.*)" for n in range(deep))
    yield from ("(a+)+b", "((a*)*)*b", "(a|a)*b", "(.*)*\\1", "(?=a)b", "(?<!a)b")
    yield from ("", "()", "[^\\x00-\\U0010ffff]", "[a&&b]", "\\", "a{2,1}", "\x00(")
    yield from ("\ud800", "\udfff\ud800", "\U0010ffff", "(?x) a #", "\\p{Nonsense}", "^$")


def _schemas() -> Iterator[Any]:
    for much in (10, 1000, 100_003, 1_000_003, 10**9 + 7, 10**15 + 37):
        yield {"type": "integer", "multipleOf": much}
        yield {"type": "number", "multipleOf": 1 / much}
        yield {"type": "string", "minLength": much}
        yield {"type": "string", "maxLength": much}
        yield {"type": "array", "minItems": much, "items": {"type": "integer"}}
        yield {"type": "integer", "minimum": -much, "maximum": 10**18 + much}
    for many in (100, 1000, 2000, 5000, 20_000):
        yield {"enum": [f"value number {n}" for n in range(many)]}
        yield {"const": "x" * many * 50}
        yield {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(many)}}
        named = {f"p{n}": {} for n in range(many)}
        yield {"type": "object", "properties": named, "additionalProperties": {"type": "integer"}}
        yield {"anyOf": [{"type": "object", "properties": {f"p{n}": {"type": "null"}}} for n in range(many)]}
        yield {"type": "object", "required": [f"p{n}" for n in range(many)]}
        yield {"type": "string", "pattern": "|".join(f"{n}.*{n}" for n in range(many))}
    for deep in (50, 64, 120, 500, 20_000):
        yield '{"items":' * deep + "{}" + "}" * deep
        yield '{"type":"object","properties":{"a":' * deep + "{}" + "}}" * deep
        yield '{"anyOf":[{"type":"null"},' * deep + "{}" + "]}" * deep
        yield "[" * deep + "]" * deep
        yield '{"a":' * deep
    for sizes in ((1000, 1000, 1000), (10**6, 10**6)):
        array: dict[str, Any] = {"type": "integer"}
        for size in sizes:
            array = {"type": "array", "minItems": size, "maxItems": size, "items": array}
        yield array
    fan = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(25)}
    yield {"$defs": {**fan, "d25": {"type": "null"}}, "$ref": "#/$defs/d0"}
    fan = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(25)}
    yield {"$defs": {**fan, "d25": {"type": "object"}}, "$ref": "#/$defs/d0"}
    yield {"allOf": [{"anyOf": [{"properties": {f"{a}{b}": {"const": b}}} for b in range(10)]} for a in range(8)]}
    yield {"$ref": "#"}
    yield {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    yield {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}, "$ref": "#/$defs/a"}
    yield {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    yield {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    yield {"type": "array", "items": {"$ref": "#"}, "minItems": 2}
    yield from ({"$ref": ref} for ref in ("http://127.0.0.1:1/", "file:///etc/passwd", "#/nowhere", "%00", "urn:x"))
    yield {"type": "object", "propertyNames": {"pattern": "((a{99}){99}){99}"}}
    yield {"type": "object", "patternProperties": {f"^{'a?' * n}$": {} for n in range(40)}}
    yield {"type": "string", "pattern": "((a{100}){100}){100}"}
    yield {"type": "string", "pattern": "a\x00b", "format": "date-time"}
    yield from ("", "null", "[]", "1e999", "NaN", "{", '"\\ud800"', '{"const": "\\udc00"}', "\x00", "\ufeff{}", "{}{}")
    yield '{"type": "object"} }, {"lark_grammar": "start: /.*/"'
    yield {"x-guidance": {"lenient": 3}}
    yield {"type": "object", "minProperties": 5, "maxProperties": 2}


def _larks() -> Iterator[str]:
    for many in (10, 1000, 50_000):
        yield "start: " + " | ".join(f'"{n}" start' for n in range(many))
        yield "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(many)) + f'\nr{many}: "a"'
        yield "start: " + "(" * many + '"a"' + ")*" * many
        yield f'start: "a"{{{many}}}'
        yield "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(many)) + f'\nT{many}: "a"'
        yield "x" * many * 20
        yield "%ignore /a*/\n" * many + 'start: "a"'
    yield from ("", "start:", "start: start", 'start: start "a" |', 'start: "a" start', "other: /a/", 'start: "a')
    yield 'start: start start start | start start | "a" |'
    yield 'start: a b\na: b "x" |\nb: a "y" |'
    yield 'start: T\nT: T "a" | "b"'
    yield "start: <[0-99999999]>\nx: <nothing> <[5]>"
    yield 'start: %json {"type": "integer", "multipleOf": 1000003}'
    yield "start: %json {"
    yield "start: @other\n%import common.NOTHING"
    yield '{"grammars": [{"lark_grammar": "start: /a/"}]}'
    yield 'start[max_tokens=999999999999999999999]: "a"'
    yield "start: " + " ".join(f"/[a-z]{{{n}}}b.*/" for n in range(200))
    yield "start: (" + " | ".join(f"/[a-z]*{chr(97 + n)}[a-z]{{40}}/" for n in range(26)) + ")*"
    yield "start: /" + "a" * 1_000_000 + "/"


def _gbnfs() -> Iterator[str]:
    for many in (10, 900, 60_000):
        yield "root ::= " + "(" * many + '"a"' + ")" * many
        yield "root ::= " + "(" * many
        yield "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(many)) + f'\nr{many} ::= "a"'
        yield 'root ::= "a"' + "?" * many
        yield f'root ::= ("a"{{{many},}}){{{many},}}'
        yield "root ::= " + '"a" | ' * many + '"b"'
    yield from ("", "root", "root ::=", "root ::= root", 'root ::= "\\', 'root ::= "\\xZZ"', "root ::= [", "root ::= a")
    yield 'root ::= root root root | root root | "a" | ""'
    yield 'root ::= "a"{' + "9" * 5000 + "}"
    yield "# " + "x" * 1_000_000
    yield 'root ::= "\\ud800\\U00110000"'


def _noise(count: int) -> Iterator[Grammar]:
    """Random pieces of all notations in a row."""
    pieces = list('()[]{}a*+?|\\":\n ,^$./<>1-&\0é\U0001f600')
    pieces += ["{9,}", "{999}", "start:", "root ::=", "%json", "%ignore", '"type":']
    draw = random.Random(0)
    for number in range(count):
        text = "".join(draw.choices(pieces, k=draw.choice([5, 50, 500])))
        kind = KINDS[number % 4]
        yield Grammar(kind, {"lark": "start: ", "gbnf": "root ::= "}.get(kind, "") + text)
