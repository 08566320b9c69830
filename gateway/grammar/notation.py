"""Grammars that clients write themselves: in Lark, as llguidance knows it, or in GBNF, llama.cpp's EBNF."""

import re
from typing import Literal

MAX_CHARACTERS = 65_536
MAX_DEPTH = 64  # of brackets; llama.cpp's own parser crashes at 60,000 groups
_RULE_OF_GBNF = re.compile(r"^[ \t]*<?[\w.-]+>?\s*::=", re.MULTILINE)


def notation(text: str) -> Literal["lark", "gbnf"]:
    """In which of the two `text` is written: lines of GBNF define rules by `::=`.

    Raises:
        ValueError: it is too long or nests too deeply.
    """
    if not text.strip():
        raise ValueError("the grammar is empty")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the grammar has {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    if "\0" in text:
        raise ValueError("the grammar holds a NUL character")
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"the grammar nests brackets deeper than {MAX_DEPTH} levels")
    return "gbnf" if _RULE_OF_GBNF.search(text) else "lark"


def _depth(text: str) -> int:
    """How deep brackets nest, those in quotes counted too: only a grammar full of them is refused for it."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    return deepest
