"""The fields of `/v1` that say what an answer must match, of OpenAI and of other servers. One of them at a time, except
that the old name of a constraint may stand beside the new one.
"""

import json
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, WithJsonSchema, model_validator

from gateway.errors import RequestError
from gateway.grammar import whitespace
from gateway.grammar.constraint import Asked, Constraint
from gateway.grammar.json_style import PLAIN, JsonStyle
from gateway.http.body import StrictModel
from gateway.routes.openai import response_format

Schema = Annotated[Any, WithJsonSchema({"anyOf": [{"type": each} for each in ("object", "boolean", "string", "null")]})]
ResponseFormat = Annotated[dict[str, Any], WithJsonSchema(response_format.DOCUMENTED)]
Choices = Annotated[list[str], Field(fail_fast=True)]

# By field, what its value is.
OF_VLLM: dict[str, Asked] = {
    "json": "json",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
OF_OTHERS: dict[str, Asked] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}


class StructuredOutputs(StrictModel):
    """vLLM's `structured_outputs`: one constraint, and how JSON is spaced."""

    json_: Schema = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: Schema = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def constraint(self, field: str, spaces: str | None) -> Constraint:
        """What it asks for in `field`, with these `spaces` if it names none. Raises RequestError."""
        style = self._style(field, spaces)
        given = self._given()
        if not given:
            raise RequestError.invalid(f"{field} needs one of {', '.join(OF_VLLM)}", field)
        [name] = only_one(list(given), f"{field}.")
        return Constraint.of(OF_VLLM[name], given[name], f"{field}.{name}", style=style)

    def asks_for(self, asked: Asked, value: Any) -> bool:
        """Whether this is its one constraint, to the letter: 1 and true differ, as JSON, and the order of members."""
        own = [(OF_VLLM[name], each) for name, each in self._given().items()]
        return [kind for kind, _ in own] == [asked] and json.dumps(own[0][1]) == json.dumps(value)

    def _given(self) -> dict[str, Any]:
        values = {"json": self.json_, **{name: getattr(self, name) for name in OF_VLLM if name != "json"}}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def _style(self, field: str, spaces: str | None) -> JsonStyle:
        own = spacing(self.whitespace_pattern, f"{field}.")
        if self.disable_any_whitespace:
            spaces = whitespace.NONE
        elif own is not None:
            spaces = own
        return JsonStyle(whitespace.BOUNDED if spaces is None else spaces, bool(self.disable_additional_properties))


class ConstraintFields(StrictModel):
    """What the text must match, in each server's words: `constraint` is what they come to."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # of vLLM before 0.12
    guided_json: Schema = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    # of SGLang and llama.cpp
    json_schema: Schema = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None

    _constraint: Constraint | None = PrivateAttr(None)

    @property
    def constraint(self) -> Constraint | None:
        return self._constraint

    @property
    def is_tagged(self) -> bool:
        """Whether the constraint is a structural tag, all schemas of which are read again for the engine: 250 kB take
        0.1 s.
        """
        return self._constraint is not None and self._constraint.kind == "structural_tag"

    @model_validator(mode="after")
    def _ask_for_one_constraint(self) -> "ConstraintFields":
        values = {name: getattr(self, name) for name in ("response_format", "structured_outputs", *OF_OTHERS)}
        given = [name for name, value in values.items() if value not in (None, "", {"type": "text"})]
        spaces = spacing(self.guided_whitespace_pattern, "guided_")
        for name in only_one([name for name in given if not self._is_repeated(name, values[name])], ""):
            self._constraint = self._read(name, values[name], spaces)
        return self

    def _is_repeated(self, name: str, value: Any) -> bool:
        """Whether it is an old name of what `structured_outputs` says too: guidance sends both, for any age of vLLM."""
        outputs = self.structured_outputs
        return outputs is not None and name.startswith("guided_") and outputs.asks_for(OF_OTHERS[name], value)

    def _read(self, name: str, value: Any, spaces: str | None) -> Constraint | None:
        style = None if spaces is None else JsonStyle(spaces)
        if name == "response_format":
            return response_format.constraint(value, name, style=style)
        if name == "structured_outputs":
            found: Constraint = value.constraint(name, spaces)
            return found
        return Constraint.of(OF_OTHERS[name], value, name, style=style or PLAIN)


def only_one(given: list[str], prefix: str) -> Collection[str]:
    """`given`, of at most one name. Raises RequestError."""
    if len(given) > 1:
        first, second = (f"{prefix}{name}" for name in given[:2])
        raise RequestError.invalid(f"{first} and {second} exclude each other: an answer has one format", second)
    return given


def spacing(pattern: str | None, prefix: str) -> str | None:
    """What a client lets stand between two tokens of JSON; None if it does not say. Raises RequestError."""
    if pattern is None:
        return None
    try:
        return whitespace.checked(pattern) if pattern else whitespace.NONE
    except ValueError as error:
        field = f"{prefix}whitespace_pattern"
        raise RequestError.invalid(f"{field} is not valid: {error}", field) from None
