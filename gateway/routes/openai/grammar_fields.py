"""Which field of a request is at fault where the engine refuses the request's grammar.

The engine knows only the grammar. Where that was made here of several fields, the line that llguidance names tells the
field; the client never saw the line, and is not told it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import GRAMMAR, RequestError
from gateway.grammar.constraint import Constraint
from gateway.routes.openai.tool_choice import ToolUse
from gateway.routes.openai.tools import Function

_PLACE = re.compile(r"line (\d+), column \d+: ")
_NAME = re.compile(r"\w+")


@dataclass(frozen=True)
class GrammarFields:
    """asked: the fields that a fault of the grammar as a whole may be in.
    lark: the grammar, if it is not as the client wrote it.
    rules: by the names of some of its rules, the field that each is made of.
    """

    asked: Sequence[str] = ()
    lark: str | None = None
    rules: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, constraint: Constraint | None, lark: str | None = None) -> "GrammarFields":
        """Of a grammar that says what `constraint` does; `lark` says it in other words."""
        if constraint is None:
            return cls()
        made = "" if constraint.kind == "structural_tag" else None
        return cls((constraint.param,), made if lark is None else lark)

    @classmethod
    def of_calls(
        cls, use: ToolUse, held: Sequence[Function], document: Constraint | None, lark: str
    ) -> "GrammarFields":
        """Of a grammar of calls, those of `held` by their schemas, or of a document."""
        rules = {f"call_{number}": use.schema_field(each) for number, each in enumerate(use.callable)}
        schemas = [use.schema_field(each) for each in held if each.parameters is not None]
        asked = schemas if len(schemas) == 1 or (document and not schemas) else [use.tools_field]
        if document is not None:
            asked = [*asked, document.param]
            rules |= dict.fromkeys(("document", "final"), document.param)
        return cls(asked, lark, rules)

    @contextmanager
    def named(self) -> Iterator[None]:
        """A refusal of the grammar by the engine names the field at fault."""
        try:
            yield
        except RequestError as error:
            raise self._named(error) from None

    def _named(self, error: RequestError) -> RequestError:
        if error.param != GRAMMAR or not self.asked:
            return error
        said, asked = error.message.removeprefix(GRAMMAR), self.asked
        if self.lark is not None and (place := _PLACE.search(said)) is not None:
            said = said.replace(place[0], "", 1)
            found = self._at(int(place[1]))
            asked = [found] if found else asked
        return RequestError(error.kind, f"{' or '.join(asked)}{said}", param=asked[0])

    def _at(self, number: int) -> str | None:
        """The field that a line of `lark` is made of: that of its rule, or of all rules that come to use that."""
        lines = (self.lark or "").split("\n")
        bodies = {found[0]: line for line in lines if (found := _NAME.match(line)) is not None}
        waiting = [name for name, line in bodies.items() if line == lines[number - 1]] if number <= len(lines) else []
        seen, fields = set(waiting), set[str]()
        while waiting:
            name = waiting.pop()
            if name in self.rules:
                fields.add(self.rules[name])
                continue
            users = {user for user, line in bodies.items() if re.search(rf"\b{name}\b", line)} - seen
            seen |= users
            waiting += users
        return fields.pop() if len(fields) == 1 else None
