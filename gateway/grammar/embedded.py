r"""The JSON schemas in a grammar that a client wrote in Lark: what they ask is enforced or refused, as anywhere else.

llguidance 1.9.1 would obey options that a schema gives itself (`x-guidance`), and leave out keywords that the draft
named by `$schema` lacks. A rule's `temperature` it reads and leaves to its caller, which samples all tokens alike.
"""

import json
import re

from gateway.grammar import json_schema
from gateway.grammar.json_style import JsonStyle

MAX_SCHEMAS = 500
_DIRECTIVE = "%json"
# What llguidance's lexer reads as one lexeme and may hold a "%json" that is none: comments, strings, regexes, tokens.
# It refuses strings and regexes that do not end. Here they end with the text, lest each quote in them is tried anew.
_LEXEME = re.compile(
    r'(?:#|//)[^\n]*|"(?:\\[\s\S]|[^"\\])*(?:"|\\?\Z)|/(?:\\[\s\S]|[^/\\])+(?:/|\\?\Z)|<[^<>\s]+>' + f"|{_DIRECTIVE}"
)
_TEMPERATURE = re.compile(r"[\[,]\s*temperature\s*=")
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()


def enforced(lark: str, style: JsonStyle) -> str:
    """`lark` with every schema as `json_schema` writes it, on the same lines. Raises ValueError."""
    written, at, schemas = "", 0, 0
    while (found := _LEXEME.search(lark, at)) is not None:
        _check_between(lark, at, found.start())
        written += lark[at : found.end()]
        at = found.end()
        if found[0] == _DIRECTIVE:
            schemas += 1
            if schemas > MAX_SCHEMAS:
                raise ValueError(f"the grammar holds more than {MAX_SCHEMAS} schemas")
            at = _end(lark, found.end())
            written += _schema(lark, found.end(), at, style)
    _check_between(lark, at, len(lark))
    return written + lark[at:]


def _check_between(lark: str, begin: int, end: int) -> None:
    """What stands between lexemes that hold text of their own. Raises ValueError."""
    if (found := _TEMPERATURE.search(lark, begin, end)) is not None:
        raise ValueError(f"temperature in line {_line(lark, found.end())} is not supported for a rule alone")


def _end(lark: str, begin: int) -> int:
    """Where the JSON value ends that begins at `begin`."""
    try:
        return _DECODER.raw_decode(lark, _SPACE.match(lark, begin).end())[1]  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        raise ValueError(f"{_DIRECTIVE} in line {_line(lark, begin)} is not followed by JSON") from None


def _schema(lark: str, begin: int, end: int, style: JsonStyle) -> str:
    try:
        schema = json_schema.enforced(lark[begin:end].strip(), style)
    except ValueError as error:
        raise ValueError(f"{_DIRECTIVE} in line {_line(lark, begin)}: {error}") from None
    return "\n" * lark.count("\n", begin, end) + f" {schema}"


def _line(lark: str, at: int) -> int:
    return lark.count("\n", 0, at) + 1
