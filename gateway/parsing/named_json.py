"""Calls that are a name and, behind it, the JSON object of the arguments."""

import re
from dataclasses import dataclass

from gateway.parsing import json_text
from gateway.parsing.calls import Arguments, Call, Head, Part, Schema
from gateway.parsing.json_calls import JsonCalls
from gateway.parsing.reader import Malformed, Reading

_NO_BRACE = re.compile(r"[^{]*")


@dataclass(frozen=True, slots=True)
class NamedJson:
    """head: matches all that stands between the opening mark and the arguments; groups `name` and, if any, `id`.
    before, middle, after: what the model writes around name and arguments.
    objects: of an older version of the format, in which a JSON value follows the mark at once.
    writes_objects: the older version is written.
    """

    head: re.Pattern[str]
    before: str
    middle: tuple[Part, ...]
    after: str = ""
    objects: JsonCalls | None = None
    writes_objects: bool = False

    def read(self, call: Call) -> Reading[None]:
        yield from call.reader.space()
        if self.objects is not None and (yield from call.reader.peek()) in "[{":
            yield from self.objects.read(call)
            return
        match = self.head.fullmatch((yield from _read_head(call)))
        if match is None:
            raise Malformed
        call.begin(match["name"].strip(), match.groupdict().get("id"))
        yield from json_text.value(call.reader, call.arguments)
        call.end()

    def write(self, name: str, arguments: Arguments) -> list[Part]:
        if self.objects is not None and self.writes_objects:
            return self.objects.write(name, arguments)
        return [self.before + name, *self.middle, Schema(arguments.schema), self.after]


def _read_head(call: Call) -> Reading[str]:
    """The text up to the brace that opens the arguments."""
    head = Head()
    while (yield from call.reader.peek()) != "{":
        head.add(call.reader.run(_NO_BRACE))
    return head.text
