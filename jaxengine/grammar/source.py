"""The text that llguidance compiles, for a grammar in any notation of `Grammar` in `engine.proto`.

Nothing is compiled here, but reading a hostile GBNF takes long: `Vetting` does this first, and elsewhere.
"""

import json
import re

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark

# With these an ordinary schema's longest mask takes 0.8 ms (262,144 ids, llguidance 1.9.1), and that of ambiguous
# rules 10 ms. Those take more than the square of their items in a row: with 2,000 in a row
# `start: start start start | start start | "a" |` takes 600 ms. 58 letters, 26 to 35 times, take 2,829 items a step.
LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=40_000,
    step_max_items=4_000,
    max_items_in_row=500,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
)

ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
LONE_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


def library_text(kind: str, text: str) -> str:
    """`text` in the notation `kind` ("json_schema", "regex", "lark", "gbnf") as llguidance takes it.

    Raises:
        ValueError: it is not of that notation. The message is short and for the client. What llguidance finds when it
            compiles is not raised here.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text has half of a surrogate pair") from error
    match kind:
        case "json_schema":
            return _of_json_schema(text)
        case "regex":
            return _of_regex(text)
        case "lark":
            return _of_lark(text)
        case "gbnf":
            return _of_gbnf(text)
    raise ValueError(f"no notation is called {kind!r}")


def behind_newlines(text: str) -> str:
    """`text`, as `library_text` returns it, with at most two newlines in front: models write them behind their
    reasoning.
    """
    try:
        [answer, *others] = json.loads(text)["grammars"]
    except ValueError:  # Lark
        answer, others = {"lark_grammar": text}, []
    first = {"lark_grammar": r"start: /\n{0,2}/ @answer"}
    return json.dumps({"grammars": [first, {**answer, "name": "answer"}, *others]})


def _of_json_schema(text: str) -> str:
    """llguidance writes the text into JSON of its own as it is, so it must be one whole document."""
    try:
        json.loads(text)
    except RecursionError as error:
        raise ValueError("the schema is nested too deeply") from error
    except ValueError as error:
        raise ValueError("the schema is not JSON") from error
    return LLMatcher.grammar_from_json_schema(text)


def _of_regex(text: str) -> str:
    if LONE_BACKSLASH.search(text):  # llguidance 1.9.1 drops it
        raise ValueError("the regex ends in a backslash that escapes nothing")
    return LLMatcher.grammar_from_regex(text)


def _of_lark(text: str) -> str:
    if text.lstrip().startswith("{"):  # llguidance would take it for its own JSON form
        raise ValueError("a Lark grammar does not begin with {")
    return LLMatcher.grammar_from_lark(text)


def _of_gbnf(text: str) -> str:
    try:
        return gbnf_to_lark(ESCAPE.sub(_character, text))
    except RecursionError as error:
        raise ValueError("the grammar is nested too deeply") from error
    except Exception as error:  # of all kinds: an escape at the end of the text is an IndexError
        raise ValueError(f"the text is not GBNF: {str(error)[:120]}") from error


def _character(escape: re.Match[str]) -> str:
    r"""\u and \U as the character: llguidance 1.9.1 takes away their leading zeros and cannot read the rest."""
    digits = escape[1] or escape[2]
    if not digits:
        return escape[0]
    code = int(digits, 16)
    if code < 0x80:  # it may mean something in the notation
        return f"\\x{code:02x}"
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise ValueError(f"{escape[0]} is no character")
    return chr(code)
