"""Descriptions of routes for the OpenAPI document: the bodies they take, their answers and their errors.

FastAPI cannot derive them, because routes read and write bytes. Nothing here runs in a request; the tests compare real
answers with the document.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

# Before there is a route, by `gateway.http.request_limits` and `gateway.routes.unrouted`.
REFUSED_EARLY = (404, 405, 408, 413, 431, 503)
OPTIONAL_LIST: Any = Field(default_factory=list)  # default of a list that an answer may leave out

OPTIONAL: Any = Field(None)  # default of any other value that an answer may leave out


class AnswerModel(BaseModel):
    """A part of an answer. It has no other fields than the declared ones."""

    model_config = ConfigDict(extra="forbid")


def takes(*models: type[BaseModel] | None, required: bool = True) -> dict[str, Any]:
    """The description of a route whose body is one of `models`; None is JSON's null."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": _either(models)}}}}


def answers(*models: Any, events: str = "", binary: bool = False) -> dict[str, Any]:
    """The description of a route whose 200 is one of `models`, or a stream of `events`, or binary; without any of these
    it is empty.
    """
    content: dict[str, Any] = {}
    if models:
        content["application/json"] = {"schema": _either(models)}
    if events:
        data = {"type": "string", "description": events}
        event = {"type": "object", "required": ["data"], "properties": {"data": data}}
        content["text/event-stream"] = {"schema": event}
    if binary:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {"responses": {"200": {"content": content}}}


def refusals(statuses: Iterable[int | str], schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The errors of a router: its own `statuses`, and those of requests refused before a route is chosen."""
    content = {"application/json": {"schema": schema}}
    every = sorted({*map(int, statuses), *REFUSED_EARLY})
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in every}


def _either(models: tuple[Any, ...]) -> dict[str, Any]:
    schemas = [_inlined(model) for model in models]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _inlined(model: Any) -> dict[str, Any]:
    """The model's JSON schema with its references replaced: they would point outside the OpenAPI document."""
    schema = TypeAdapter(model).json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            name = str(value.get("$ref", "")).removeprefix("#/$defs/")
            return resolve(definitions[name]) if name in definitions else {key: resolve(v) for key, v in value.items()}
        return [resolve(each) for each in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = resolve(schema)
    return inlined
