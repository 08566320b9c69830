"""What the OpenAPI document is told of a route: the bodies it takes and what it answers.

Routes read bytes and write bytes, so nothing here runs in a request; the tests hold real answers against the document.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

REFUSED_EARLY = (404, 405, 408, 413, 431, 503)  # by no route, see `gateway.http.guard` and `gateway.routes.unrouted`
ABSENT: Any = Field(default_factory=list)  # of a field that need not be there


class Told(BaseModel):
    """A part of an answer, with no field that is not named."""

    model_config = ConfigDict(extra="forbid")


def takes(*models: type[BaseModel]) -> dict[str, Any]:
    """A route whose body is one of `models`, read by `read_body`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _either(models)}}}}


def answers(*models: Any, events: str = "") -> dict[str, Any]:
    """A route whose 200 is one of `models`, a stream of `events`, or, of neither, empty."""
    content: dict[str, Any] = {}
    if models:
        content["application/json"] = {"schema": _either(models)}
    if events:
        data = {"type": "string", "description": events}
        event = {"type": "object", "required": ["data"], "properties": {"data": data}}
        content["text/event-stream"] = {"schema": event}
    return {"responses": {"200": {"content": content}}}


def refusals(statuses: Iterable[int | str], schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The errors of a router: `statuses` of its own and those refused before it."""
    content = {"application/json": {"schema": schema}}
    every = sorted({*map(int, statuses), *REFUSED_EARLY})
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in every}


def _either(models: tuple[Any, ...]) -> dict[str, Any]:
    schemas = [_inlined(model) for model in models]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _inlined(model: Any) -> dict[str, Any]:
    """The model's JSON schema without references, which would point outside the OpenAPI document."""
    schema = TypeAdapter(model).json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            name = str(value.get("$ref", "")).removeprefix("#/$defs/")
            return resolve(definitions[name]) if name in definitions else {key: resolve(v) for key, v in value.items()}
        return [resolve(each) for each in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = resolve(schema)
    return inlined
