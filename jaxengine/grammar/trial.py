"""One grammar tried as a request would use it, and what its sender is told if that fails.

It is compiled and then followed through the beginning of some text: grammars of modest size exist that take 30 ms for
every token, which all other rows of the step would wait for, or that die of llguidance's limits after a few tokens.

A trial has no limit of its own against time and memory: `vet_process` runs each in a process that has.
"""

import random
import re
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from jaxengine.grammar.allowance import Allowance
from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.matcher import TOO_COSTLY
from jaxengine.grammar.source import LIMITS, library_text

MAX_CHARACTERS = 300  # of what a client is told
STEPS = 32  # tokens of a random text that are matched
NO_TEXT = "no text matches it, or none that the model's tokens can write"
STATE = "\n<state>"  # of the parser; llguidance appends it to some errors
PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
QUOTED = re.compile(r'"[^"\n]{60,}"')  # parts of the grammar that are too long to be repeated
# The vocabulary; options that clients do not have; advice that fits few.
HINTS = re.compile(r"; following (?:special tokens )?are .*|; (?:either|try|consider) .*|\. Enable '.*")
LIMIT = re.compile(r"too (?:big|large|many|complex)|fuel|precomputation|\bmax is\b")


def trial(tokenizer: LLTokenizer, eos_token_ids: Sequence[int], grammar: Grammar) -> str:
    """Why `grammar` is refused, for the client in one line of at most `MAX_CHARACTERS`; "" if it is not."""
    try:
        return shortened(_failure(tokenizer, eos_token_ids, grammar))
    except MemoryError:
        raise
    except BaseException as error:  # a panic of llguidance is no Exception
        if isinstance(error, ValueError):
            return shortened(str(error))
        return "it makes the grammar compiler fail"


def _failure(tokenizer: LLTokenizer, eos_token_ids: Sequence[int], grammar: Grammar) -> str:
    matcher = LLMatcher(tokenizer, library_text(grammar), log_level=0, limits=LIMITS)
    empty = matcher.is_accepting()
    ends = sum(1 << token for token in set(eos_token_ids))
    draw = random.Random(0)
    allowance = Allowance()
    for step in range(STEPS):
        with allowance:
            allowed = int.from_bytes(matcher.compute_bitmask(), "little") & ~ends
        if not allowed:
            if step == 0 and not empty and not matcher.is_error():
                return NO_TEXT
            break
        if step == 0:  # it may take longer: nobody waits for a token yet
            allowance = Allowance()
        elif allowance.exceeded:
            return TOO_COSTLY
        with allowance:
            matcher.consume_token(_one_of(allowed, draw))
        allowance.earn()
    return said(matcher.get_error(), grammar.kind) if matcher.is_error() else ""


def _one_of(allowed: int, draw: random.Random) -> int:
    """The place of a bit of `allowed`."""
    start = draw.randrange(allowed.bit_length())
    rest = allowed >> start
    return start + (rest & -rest).bit_length() - 1


def said(error: str, kind: str) -> str:
    """The sentence in an error of llguidance that says what is wrong, without the drawing of where."""
    lines = error.partition(STATE)[0].split("\n")
    if lines[0].startswith("NoExtension"):
        return NO_TEXT
    place = PLACE.match(lines[0])
    what = HINTS.sub("", PLACE.sub("", lines[0]))
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]  # of its regex parser
    if reasons:
        what = f"invalid regex: {reasons[-1]}"
    elif LIMIT.search(what):
        what = f"it is too complex: {what}"
    return f"line {place[1]}, column {place[2]}: {what}" if place and kind == "lark" else what


def shortened(message: str) -> str:
    """One printable line of at most `MAX_CHARACTERS`."""
    line = " ".join(QUOTED.sub('"…"', message).split())
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"
