r"""What may stand between two tokens of JSON, as a regex: llguidance takes it where JSON allows whitespace, once."""

import re

from gateway.grammar import regex

BOUNDED = r"[\x20\x0A\x0D\x09]{1,20}"  # without a bound a weak model may write newlines until its last token
ONE_SPACE = " "  # TGI allows no more
NONE = ""

_ESCAPE = r"\\[snrt]|\\x(?:20|09|0[aAdD])|\\u(?:0020|0009|000[aAdD])"
_OF_WHITESPACE = re.compile(rf"(?:[ \n\r\t()*+?|]|\{{\d+(?:,\d*)?\}}|\[(?:[ \n\r\t]|{_ESCAPE})+\]|{_ESCAPE})*")


def checked(pattern: str) -> str:
    r"""A client's `pattern`. `\s` means JSON's whitespace in it, not Unicode's. Raises ValueError."""
    if not _OF_WHITESPACE.fullmatch(regex.checked(pattern)):
        raise ValueError("the regex must be of JSON's whitespace only")
    return pattern.replace(r"\s", r"[\x20\x0A\x0D\x09]")
