"""The text that llguidance compiles, for a grammar in any notation of `Grammar` in `engine.proto`.

Nothing is compiled here, but reading a hostile GBNF takes long: `Vetting` does this first, and elsewhere.
"""

import json
import math
import re
from typing import NoReturn

from llguidance import LLMatcher, LLParserLimits

from jaxengine.grammar import gbnf
from jaxengine.grammar.grammar import Grammar

# Measured with llguidance 1.9.1 and 49,152 ids, each text within its `Allowance`:
# - An object of n optional properties has 4 n items in a row, and takes up to 4,000 in a step where n is 325. Of 150 a
#   mask takes 0.3 ms at the 99th percentile, of 300 it takes 1 to 3 ms.
# - The longest mask found, of 120 rules that nothing tells apart, takes 0.13 to 0.22 s; with 500 items in a row 0.18 s.
#   With 8,000 in a step, which 500 properties need, it takes 0.27 s.
# - A pattern of \p{Letter}+ needs the fuel, with which a mask may take 0.17 s; with half of it 0.04 s.
LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=40_000,
    step_max_items=5_000,
    max_items_in_row=1_300,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
)

# Where only one text can follow, llguidance would allow only the ids that the tokenizer makes of it. These may be
# special tokens, whose bytes the grammar then refuses, or begin with a space that the text lacks, as T5's do (1.9.1).
ANY_TOKENS = '%llguidance {"no_forcing": true}'
NEWLINES = r"/\n{0,2}/"  # models write them behind their reasoning

ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
LONE_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


def library_text(grammar: Grammar) -> str:
    """`grammar` as llguidance takes it: a JSON object of grammars, of which the first is that of the whole text.

    Raises:
        ValueError: its text is not of its notation. The message is short and for the client. What llguidance finds when
            it compiles is not raised here.
    """
    try:
        grammar.text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text has half of a surrogate pair") from error
    newlines = NEWLINES if grammar.behind_reasoning else ""
    match grammar.kind:
        case "json_schema":
            return _alone(f"start: {newlines} %json {_checked_schema(grammar.text)}")
        case "regex":
            return _alone(f"start: {newlines} answer\nanswer: {_terminal(grammar.text)}")
        case "lark":
            lark = grammar.text
        case "gbnf":
            lark = _of_gbnf(grammar.text)
        case _:
            raise ValueError(f"no notation is called {grammar.kind!r}")
    # As a part of another, a grammar may need several times the items: a regex of 35 characters more than `LIMITS`.
    return _alone(f"start: {newlines} @answer", answer=lark) if newlines else _alone(lark)


def _alone(lark: str, **parts: str) -> str:
    """`lark` with the option, which is last so that lines keep their numbers, and the grammars that it names."""
    grammars = [{"lark_grammar": f"{lark}\n{ANY_TOKENS}"}]
    return json.dumps({"grammars": grammars + [{"name": name, "lark_grammar": part} for name, part in parts.items()]})


def _checked_schema(text: str) -> str:
    """`text`, which is passed on as it is, so it must be one whole document."""
    try:
        json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except NotFinite:
        raise
    except RecursionError as error:
        raise ValueError("the schema is nested too deeply") from error
    except ValueError as error:
        raise ValueError("the schema is not JSON") from error
    return text


class NotFinite(ValueError):
    """A number that JSON lacks, or that no double holds."""


def _refuse_constant(name: str) -> NoReturn:
    raise NotFinite(f"the schema holds {name}, which is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotFinite(f"the schema holds {digits[:20]}, which is too large for a double")
    return value


def _terminal(text: str) -> str:
    """A regex as a terminal of Lark."""
    if LONE_BACKSLASH.search(text):  # llguidance 1.9.1 drops it
        raise ValueError("the regex ends in a backslash that escapes nothing")
    lark: str = json.loads(LLMatcher.grammar_from_regex(text))["grammars"][0]["lark_grammar"]
    return lark.removeprefix("start: ")


def _of_gbnf(text: str) -> str:
    try:
        return gbnf.lark(ESCAPE.sub(_character, text))
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
