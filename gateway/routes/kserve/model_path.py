"""Paths that name a model, and perhaps its version: every route of a model has both."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import Request
from starlette.convertors import Convertor, register_url_convertor

# What may follow a model's name. A name may hold slashes, so a path must tell where it ends.
ENDS = ("versions/[^/]+", "infer", "generate", "generate_stream", "config", "stats", "ready", "trace/setting")


class ModelName(Convertor[str]):
    """A model's name in a path: all up to the first of `ENDS`."""

    regex = rf"(?:(?!/(?:{'|'.join(ENDS)})(?:/|$)).)+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("model_name", ModelName())


class ModelPath(NamedTuple):
    model: str
    version: str  # "" if the path has none


async def model_in_path(request: Request) -> ModelPath:
    """The dependency of routes that `of_model` makes."""
    return ModelPath(request.path_params["model"], request.path_params.get("version", ""))


def of_model(method: Callable[..., Any], path: str, description: dict[str, Any]) -> Callable[[Any], Any]:
    """A decorator: the function answers `method` at `path` below a model's name, without and with a version.

    Args:
        description: of the route, for the OpenAPI document.
    """

    def decorate(function: Any) -> Any:
        for below, names in (("", ["model"]), ("/versions/{version}", ["model", "version"])):
            extra = path_parameters(*names) | description
            method(f"/models/{{model:model_name}}{below}{path}", openapi_extra=extra)(function)
        return function

    return decorate


def path_parameters(*names: str) -> dict[str, Any]:
    """For the OpenAPI document: the parameters of a path."""
    text = {"type": "string", "minLength": 1}
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": text} for name in names]}
