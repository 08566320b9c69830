"""Regular expressions that a request holds: bounds that keep compiling them cheap, and spellings with two meanings.

The dialect is that of Rust's `regex` crate, which llguidance reads; what it cannot read is the engine's to refuse. A
regex is of the whole text, so `^` at its start and `$` at its end say nothing new; llguidance 1.9.1 takes them there.
"""

import re

MAX_CHARACTERS = 2_048
# `((a{100}){100}){100}` takes llguidance 1.9.1 up to 38 s and 400 MiB, `(a{100}){100}` takes it 15 ms.
MAX_REPETITIONS = 10_000

DIGITS = "0-9"
_DIGITS_IN_CLASS = {r"\d": DIGITS, r"\D": f"[^{DIGITS}]"}

ANYTHING = "(?s:.*)"
_ANCHORS = {"^", "$", r"\A", r"\z", r"\Z", r"\b", r"\B", r"\G"}
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]")  # also where it is escaped: then the regex is refused, not misread
_SPECIAL = re.compile(r"[.^$*+?(){}\[\]|\\/&~#\x00-\x1f-]")
_ESCAPE = re.compile(r"\\[\s\S]")
_PARTS = re.compile(
    r"\\[\s\S]"  # an escaped character
    r"|\[\^?\]?(?:\\[\s\S]|\[:\^?\w+:\]|[^\]\\])*\]"  # a class
    r"|\{(?P<low>\d+)(?:,(?P<high>\d*))?\}"
    r"|[()*+?]"
    r"|[\s\S]"
)


def checked(regex: str) -> str:
    r"""`regex` without Python's `\Z` at its end, which Rust lacks, and with `\d` as the ten digits.

    Raises:
        ValueError: it is too long, repeats too much or is no regex of a text; the message says what is wrong with it.
    """
    if not regex:
        raise ValueError("the regex is empty")
    if len(regex) > MAX_CHARACTERS:
        raise ValueError(f"the regex has {len(regex)} characters, at most {MAX_CHARACTERS} are allowed")
    if "\0" in regex:
        raise ValueError("the regex holds a NUL character")
    parts = list(_PARTS.finditer(regex))
    _check_repetitions(parts)
    if parts[-1][0] == r"\Z":
        del parts[-1]
    return "".join(map(_ascii_digits, parts))


def _ascii_digits(part: re.Match[str]) -> str:
    r"""`part` with `\d` as JSON Schema means it (ECMA-262). In Rust it is any digit of Unicode, and a weak model writes
    some: "🯱🯱🯱" for `\d{1,3}`.
    """
    text = part[0]
    if text.startswith("["):
        return _ESCAPE.sub(lambda escape: _DIGITS_IN_CLASS.get(escape[0], escape[0]), text)
    return {r"\d": f"[{DIGITS}]", r"\D": f"[^{DIGITS}]"}.get(text, text)


def _check_repetitions(parts: list[re.Match[str]]) -> None:
    """Raise ValueError where groups repeated within repeated groups stand for too many copies, or where one quantifier
    follows another: `a++` is `(a+)+` in Rust, and in Python a repetition that gives nothing back.
    """
    open_groups = [1]  # of each open group, the most copies that it makes of anything inside it
    last = 1  # likewise, of the item before
    quantified = False
    for part in parts:
        count = _count(part)
        if count is None:
            last = 1
            if part[0] == "(":
                open_groups.append(1)
            elif part[0] == ")" and len(open_groups) > 1:
                last = open_groups.pop()
        elif quantified and part[0] == "+":
            raise ValueError("the regex holds a possessive quantifier, which is not supported")
        else:
            last *= count
            if last > MAX_REPETITIONS:
                raise ValueError(f"the regex repeats an item more than {MAX_REPETITIONS} times")
        quantified = count is not None and not (quantified and part[0] == "?")
        open_groups[-1] = max(open_groups[-1], last)


def _count(part: re.Match[str]) -> int | None:
    """How many copies of the item before it a quantifier makes; None for what is no quantifier."""
    if part["low"] is not None:
        return max(1, int(part["low"]), int(part["high"] or 0))
    return 1 if part[0] in ("*", "+", "?") else None


def escaped(text: str) -> str:
    """A regex of exactly this text."""
    return _SPECIAL.sub(lambda match: f"\\{match[0]}" if match[0] >= " " else f"\\x{ord(match[0]):02x}", text)


def whole(pattern: str) -> str:
    """A schema's pattern, which may be found anywhere in a text, as a regex of whole texts.

    Raises:
        ValueError: it looks around itself, or an anchor stands elsewhere than at the ends of its alternatives.
    """
    return "|".join(map(_unanchored, _alternatives([part[0] for part in _PARTS.finditer(pattern)])))


def _alternatives(parts: list[str]) -> list[list[str]]:
    """`parts` between the bars that stand in no group."""
    found: list[list[str]] = [[]]
    depth = 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            found.append([])
        else:
            found[-1].append(part)
    return found


def _unanchored(parts: list[str]) -> str:
    """One alternative as a regex of whole texts."""
    if (inner := _grouped(parts)) is not None:
        return f"(?:{'|'.join(map(_unanchored, _alternatives(inner)))})"
    begins, ends = parts[:1] == ["^"], parts[-1:] == ["$"]
    inner = parts[begins : len(parts) - ends]
    if not _ANCHORS.isdisjoint(inner) or _LOOKS_AROUND.search("".join(inner)):
        raise ValueError("the regex looks at what is around it")
    return f"{'' if begins else ANYTHING}(?:{''.join(inner)}){'' if ends else ANYTHING}"


def _grouped(parts: list[str]) -> list[str] | None:
    """What a group holds that is all of `parts`; None if they are no such group."""
    depths = [0]
    for part in parts:
        depths.append(depths[-1] + (part == "(") - (part == ")"))
    if parts[:1] != ["("] or depths.index(0, 1) < len(parts) or parts[-1] != ")":
        return None
    if parts[1] != "?":
        return parts[1:-1]
    return parts[3:-1] if parts[2] == ":" else None
