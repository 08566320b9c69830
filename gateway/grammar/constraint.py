"""What the text of an answer must match, whichever field of whichever dialect asked for it.

What only compiling shows is refused by the engine, before the first token; `gateway.errors` words it alike.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.errors import RequestError
from gateway.grammar import choice, embedded, json_schema, notation, regex, structural_tag
from gateway.grammar.json_style import PLAIN, JsonStyle
from jaxengine.rpc import engine_pb2 as pb

Asked = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """`text` in a notation of `pb.Grammar`, or a structural tag, which the request's field `param` asked for.

    style: of the JSON in a structural tag.
    """

    kind: Literal["json_schema", "regex", "lark", "gbnf", "structural_tag"]
    text: str
    param: str
    style: JsonStyle = PLAIN

    @classmethod
    def of(cls, asked: Asked, value: Any, param: str, *, style: JsonStyle = PLAIN) -> "Constraint":
        """The constraint that `value` is.

        Args:
            asked: what `value` is: a JSON schema (object, bool or text), true for any JSON object, a regex, a list of
                texts, a grammar in Lark or GBNF, or a structural tag (object or text).
            param: the field it came in.
            style: of all JSON in the text.

        Raises:
            RequestError: it is not valid, too large, or asks for what cannot be enforced.
        """
        try:
            return cls._of(asked, value, param, style)
        except ValueError as error:
            raise RequestError.invalid(f"{param} is not valid: {error}", param) from None

    @classmethod
    def _of(cls, asked: Asked, value: Any, param: str, style: JsonStyle) -> "Constraint":
        match asked:
            case "json":
                return cls("json_schema", json_schema.guided(value, param=param, style=style), param)
            case "json_object":
                return cls("json_schema", json_schema.guided({"type": "object"}, param=param, style=style), param)
            case "regex":
                return cls("regex", regex.checked(value), param)
            case "choice":
                return cls("lark", choice.lark(value), param)
            case "grammar":
                kind = notation.notation(value)
                return cls(kind, embedded.enforced(value, style) if kind == "lark" else value, param)
            case "structural_tag":
                structural_tag.lark(value, {}, param, style)
                return cls("structural_tag", value if isinstance(value, str) else json.dumps(value), param, style)

    def to_proto(self, marks: Mapping[str, int]) -> pb.Grammar:
        """As the engine takes it. `marks` are the tokenizer's."""
        if self.kind == "structural_tag":
            return pb.Grammar(lark=structural_tag.lark(self.text, marks, self.param, self.style))
        return pb.Grammar(**{self.kind: self.text})
