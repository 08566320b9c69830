"""vLLM's structural tags as a Lark grammar: free text in which, from certain marks on, a format holds.

The older notation is a list of tags and their triggers, the newer a tree of formats. What llguidance cannot tell apart
is refused by name: free text is followed by nothing but a tag's end.
"""

import re
from collections.abc import Mapping
from typing import Any

from gateway.grammar import json_schema, regex
from gateway.grammar.added_tokens import AddedTokens
from gateway.grammar.choice import literal
from gateway.grammar.json_style import PLAIN, JsonStyle

MAX_CHARACTERS = 262_144  # of the grammar that is made of it
MAX_FORMATS = 500  # and entries of a list
MAX_DEPTH = 16
MAX_TEXT = 8_192  # characters of a mark
TEXT = r"TEXT: /(?s:.*)/"

_UNSAFE = re.compile(r"\\.|[/\n]")  # between slashes; what is escaped already is left alone


def lark(tag: Any, tokens: Mapping[str, int], param: str, style: JsonStyle = PLAIN) -> str:
    """The grammar of `tag`, an object or JSON text.

    Args:
        tokens: ids of the added tokens, by spelling. A mark that is one is written as the token: free text has none.
        param: the field it came in.
        style: of the JSON in it.

    Raises:
        ValueError: it is no structural tag, or one that is not supported.
        RequestError: a schema in it is refused.
    """
    if isinstance(tag, str):
        tag = json_schema.parsed(tag)
    if not isinstance(tag, dict):
        raise ValueError("a structural tag must be an object")
    writer = _Writer(tokens, param, style)
    start = writer.format(tag["format"] if "format" in tag else _triggered(tag), depth=0, last=True)
    grammar = "\n".join(["%llguidance {}", f"start: {start}", TEXT, *writer.rules]) + "\n"
    _check_length(len(grammar))
    return grammar


def _check_length(characters: int) -> None:
    """Of the grammar, or of what is already known to be part of it. Raises ValueError."""
    if characters > MAX_CHARACTERS:
        raise ValueError(f"the grammar has more than {MAX_CHARACTERS} characters")


def _triggered(tag: dict[str, Any]) -> dict[str, Any]:
    """The older notation in the newer one."""
    structures = _list(tag, "structures")
    if not all(isinstance(each, dict) for each in structures):
        raise ValueError("structures must be objects")
    tags = [
        {"begin": each.get("begin"), "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
         "end": each.get("end")} for each in structures
    ]  # fmt: skip
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """Writes formats as expressions, which may refer to `rules`."""

    def __init__(self, tokens: Mapping[str, int], param: str, style: JsonStyle) -> None:
        self.rules: list[str] = []
        self._tokens, self._param, self._style = tokens, param, style
        self._marks = AddedTokens(tokens)
        self._formats = self._characters = 0

    def format(self, format: Any, *, depth: int, last: bool) -> str:
        """The expression of a format. Nothing may follow free text, so it must come `last`."""
        self._formats += 1
        if self._formats > MAX_FORMATS or depth > MAX_DEPTH:
            raise ValueError(f"there are more than {MAX_FORMATS} formats, or they nest deeper than {MAX_DEPTH} levels")
        if not isinstance(format, dict):
            raise ValueError("a format must be an object")
        kind = format.get("type")
        if kind in ("any_text", "triggered_tags"):
            if not last:
                raise ValueError(f"{kind} must come last, or be any_text between the marks of a tag")
            if format.get("excludes"):
                raise ValueError("excludes is not supported")
        match kind:
            case "any_text":
                return "TEXT"
            case "const_string":
                return self._text(format.get("value"), "value")
            case "json_schema":
                return self._json(format)
            case "regex":
                return self._regex(format.get("pattern"))
            case "sequence":
                return self._sequence(_list(format, "elements"), depth, last)
            case "or":
                parts = [self.format(each, depth=depth + 1, last=last) for each in _list(format, "elements")]
                return f"({' | '.join(parts)})"
            case "tag":
                return self._tag(format, self._text(format.get("begin"), "begin"), depth)
            case "triggered_tags":
                return self._triggered_tags(format, depth)
            case "tags_with_separator":
                return self._separated(format, depth)
        raise ValueError(f"formats of type {kind!r:.40} are not supported")

    def _json(self, format: dict[str, Any]) -> str:
        if format.get("style", "json") != "json":
            raise ValueError("json_schema is supported in the style json only")
        schema = json_schema.guided(format.get("json_schema"), param=self._param, style=self._style)
        self._count(schema)
        return f"%json {schema}"

    def _regex(self, pattern: Any) -> str:
        if not isinstance(pattern, str):
            raise ValueError("pattern must be a string")
        return f"/{_UNSAFE.sub(_escaped, regex.checked(pattern))}/"

    def _sequence(self, elements: list[Any], depth: int, last: bool) -> str:
        final = len(elements) - 1
        parts = [self.format(each, depth=depth + 1, last=last and at == final) for at, each in enumerate(elements)]
        return f"({' '.join(parts)})"

    def _tag(self, tag: dict[str, Any], begin: str, depth: int) -> str:
        """A tag that begins with the expression `begin`."""
        content, ends = tag.get("content"), tag.get("end")
        ends = _list(tag, "end") if isinstance(ends, list) and ends else [ends]
        if isinstance(content, dict) and content.get("type") == "any_text" and not content.get("excludes"):
            body = f"({' | '.join(self._until(each) for each in ends)})"
        else:
            end = " | ".join(self._text(each, "end") for each in ends)
            body = f"{self.format(content, depth=depth + 1, last=False)} ({end})"
        return f"({begin} {body})"

    def _until(self, end: Any) -> str:
        """Any text up to `end`, and `end`."""
        parts = self._parts(end, "end")
        if not parts:
            return "TEXT"
        if isinstance(parts[0], int):
            return f"TEXT {self._text(end, 'end')}"
        return f"{self._rule(f'[suffix={literal(parts[0])}]: TEXT')} {self._joined(parts[1:])}"

    def _triggered_tags(self, format: dict[str, Any], depth: int) -> str:
        triggers = _list(format, "triggers")
        tags: dict[str, list[str]] = {}
        for tag in _list(format, "tags"):
            begin = tag.get("begin") if isinstance(tag, dict) else None
            fitting = [each for each in triggers if isinstance(each, str) and each and str(begin).startswith(each)]
            if not isinstance(begin, str) or len(fitting) != 1:
                raise ValueError("each tag must begin with exactly one of triggers")
            trigger = self._whole(fitting[0], begin)
            rest = self._text(begin.removeprefix(trigger), "begin")
            tags.setdefault(trigger, []).append(self._tag(tag, rest, depth))
        tag = " | ".join(f"{self._trigger(each)} ({' | '.join(of)})" for each, of in tags.items())
        if format.get("stop_after_first"):
            return f"({tag})" if format.get("at_least_one") else f"({tag} | TEXT)"
        return f"(({tag}){'+' if format.get('at_least_one') else '*'} TEXT)"

    def _whole(self, trigger: str, begin: str) -> str:
        """`trigger`, or, if it is only the beginning of a token that `begin` begins with, that token."""
        found = self._marks.at(begin, 0)
        return found if found.startswith(trigger) else trigger

    def _trigger(self, trigger: str) -> str:
        """Any text up to a trigger, and the trigger."""
        first, *rest = self._parts(trigger, "triggers")
        if isinstance(first, int):
            return f"TEXT {self._joined([first, *rest])}"
        return f"{self._rule(f'[lazy]: TEXT {literal(first)}')} {self._joined(rest)}"

    def _separated(self, format: dict[str, Any], depth: int) -> str:
        tags = [{**each, "type": "tag"} if isinstance(each, dict) else each for each in _list(format, "tags")]
        tag = f"({' | '.join(self.format(each, depth=depth + 1, last=False) for each in tags)})"
        many = "" if format.get("stop_after_first") else f" ({self._text(format.get('separator'), 'separator')} {tag})*"
        return f"({tag}{many}){'' if format.get('at_least_one') else '?'}"

    def _rule(self, definition: str) -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{definition}")
        return name

    def _text(self, text: Any, field: str) -> str:
        """An expression of exactly `text`, the value of `field`."""
        return self._joined(self._parts(text, field))

    def _joined(self, parts: list[str | int]) -> str:
        return " ".join(literal(part) if isinstance(part, str) else f"<[{part}]>" for part in parts)

    def _parts(self, text: Any, field: str) -> list[str | int]:
        """`text` with added tokens as their ids."""
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"{field} must be a text of at most {MAX_TEXT} characters")
        self._count(text)
        parts: list[str | int] = []
        at = 0
        for begin, mark in self._marks.within(text):
            parts += [text[at:begin], self._tokens[mark]]
            at = begin + len(mark)
        return [part for part in (*parts, text[at:]) if part != ""]

    def _count(self, text: str) -> None:
        self._characters += len(text)
        _check_length(self._characters)


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a list, not empty")
    if len(value) > MAX_FORMATS:
        raise ValueError(f"{name} has {len(value)} entries, at most {MAX_FORMATS} are allowed")
    return value


def _escaped(part: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(part[0], part[0])
