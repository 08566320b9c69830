"""The tools of a chat: functions that the model may call, described by name and JSON schema."""

import json
import re
from typing import Annotated, Any

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from gateway.errors import RequestError
from gateway.http.body import StrictModel

MAX_TOOLS = 128  # as OpenAI
MAX_TOOL_CHARACTERS = 262_144  # of all definitions, as JSON
MAX_NAME = 64
NAME = re.compile(r"[A-Za-z0-9_.-]+")
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class Function(StrictModel):
    """A function. Without `parameters`, which TGI calls `arguments`, it has none. Both may be given if they agree."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    strict: bool | None = None

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_what_is_given(cls, value: Any, validate: ModelWrapValidatorHandler["Function"]) -> "Function":
        function = validate(value)
        if isinstance(value, dict):
            function._given = value
        return function

    @model_validator(mode="after")
    def _has_one_schema(self) -> "Function":
        if self.parameters is None:
            self.parameters = self.arguments
        elif self.arguments not in (None, self.parameters):
            raise ValueError("arguments is TGI's name of parameters: give only one of them")
        return self

    @model_validator(mode="after")
    def _is_well_named(self) -> "Function":
        if not NAME.fullmatch(self.name):
            raise ValueError("name must be of letters, digits, dots, underscores and hyphens")
        if (self.parameters or {}).get("type", "object") != "object":
            raise ValueError(f"{self.schema_field} must be the schema of an object")
        return self

    @property
    def schema_field(self) -> str:
        """The field that holds the schema of the arguments."""
        return "arguments" if self.parameters is not None and self._given.get("parameters") is None else "parameters"

    @property
    def shown(self) -> dict[str, Any]:
        """The function as the model's template shows it: what the client wrote, in its order, but `strict`, which is
        meant for the server, and always with parameters, which templates count on.
        """
        given = {
            "parameters" if name == "arguments" else name: value
            for name, value in self._given.items()
            if name != "strict" and value is not None
        }
        return given if "parameters" in given else given | {"parameters": NO_PARAMETERS}


class ToolDefinition(StrictModel):
    type: Annotated[str, Field(max_length=64)]
    function: Function | None = None

    @model_validator(mode="after")
    def _is_a_function(self) -> "ToolDefinition":
        if self.type != "function" or self.function is None:
            raise ValueError("only tools of type function are supported, with a function")
        return self


def check_functions(functions: list[Function], field: str) -> None:
    """Raise RequestError if two of the functions have one name, or all are too long."""
    seen: set[str] = set()
    for each in functions:
        if each.name in seen:
            raise RequestError.invalid(f"{field} holds two functions named `{each.name}`", field)
        seen.add(each.name)
    length = sum(len(json.dumps(each.shown)) for each in functions)
    if length > MAX_TOOL_CHARACTERS:
        message = f"{field} is {length} characters of JSON, at most {MAX_TOOL_CHARACTERS} are read"
        raise RequestError.invalid(message, field)
