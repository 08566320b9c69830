"""Request bodies: bytes to a strict model, or a clear refusal.

Two readers look at the same bytes. pydantic validates them in strict mode and refuses bad UTF-8, a BOM, lone
surrogates, NaN and deep nesting, in fields we know. Python's own reader then looks for what pydantic lets pass:
duplicate keys, and depth, NaN and endless numbers inside untyped or unknown fields.
"""

import json
import math
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.errors import Kind, RequestError

MAX_DEPTH = 32
MAX_NUMBER = 64  # characters of one JSON number
MAX_ERRORS = 10  # reported at once
MAX_REPORT = 300  # characters of one report
MAX_SHOWN = 24  # characters of a number shown in one

Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """No coercion, finite floats; unknown fields are ignored, as every server of these protocols does."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The request's JSON body as `model`.

    Raises:
        RequestError: MEDIA_TYPE, MALFORMED (not JSON) or SHAPE (not this model).
    """
    _check_media_type(request)
    raw = await request.body()
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error) from None
    _checked(raw)
    return body


async def names_in(request: Request) -> frozenset[str]:
    """The names at the top of the request's JSON object, by which some routes tell what it is.

    Raises:
        RequestError: MEDIA_TYPE, MALFORMED (not JSON) or SHAPE (not an object).
    """
    _check_media_type(request)
    value = _checked(await request.body())
    if not isinstance(value, dict):
        raise RequestError(Kind.SHAPE, "the body must be a JSON object")
    return frozenset(value)


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI is told about a route whose body is read by `read_body`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(model)}}}}


def any_of(*models: type[BaseModel]) -> dict[str, Any]:
    """`takes` for a route that takes one of several."""
    schema = {"anyOf": [_inlined(model) for model in models]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema without references, which would point outside the OpenAPI document."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            name = str(value.get("$ref", "")).removeprefix("#/$defs/")
            return resolve(definitions[name]) if name in definitions else {key: resolve(v) for key, v in value.items()}
        return [resolve(each) for each in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = resolve(schema)
    return inlined


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    is_json = media_type.startswith("application/") and (media_type == "application/json" or media_type[-5:] == "+json")
    if not is_json:
        raise RequestError(Kind.MEDIA_TYPE, "the request needs the header `content-type: application/json`")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(Kind.MEDIA_TYPE, "compressed request bodies are not accepted")


def _refusal(error: ValidationError) -> RequestError:
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return RequestError(Kind.MALFORMED, f"the body is not valid JSON: {first['msg'][:MAX_REPORT]}")
    lines = [_describe(problem) for problem in problems[:MAX_ERRORS]]
    more = f" (and {len(problems) - MAX_ERRORS} more)" if len(problems) > MAX_ERRORS else ""
    return RequestError(Kind.SHAPE, ("; ".join(lines) + more)[: MAX_ERRORS * 100], param=_field(first["loc"]) or None)


def _describe(problem: Any) -> str:
    """`field: what is wrong`, with the value where it is a number: text is never echoed."""
    field, given = _field(problem["loc"]), problem["input"]
    message = problem["msg"].removeprefix("Value error, ")
    shown = f" (given {given})" if isinstance(given, int | float) and len(str(given)) <= MAX_SHOWN else ""
    return f"{field + ': ' if field else ''}{message}"[:MAX_REPORT] + shown


def _field(location: tuple[int | str, ...]) -> str:
    """`("stop", "list[str]", 0)` as `stop[0]`: names of union branches say nothing to a client."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path[:100]


def _checked(raw: bytes) -> Any:
    """The JSON value of `raw`."""
    try:
        value = json.loads(
            raw,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except (ValueError, RecursionError):
        raise RequestError(Kind.MALFORMED, "the body is not valid JSON") from None
    if _depth_exceeds(value, MAX_DEPTH):
        raise RequestError(Kind.MALFORMED, f"the body nests deeper than {MAX_DEPTH} levels")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise RequestError(Kind.MALFORMED, "the body names a key twice in one object")
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(Kind.MALFORMED, f"{name} is not a JSON number")


def _bounded_int(digits: str) -> int:
    _check_length(digits)
    return int(digits)


def _finite_float(digits: str) -> float:
    _check_length(digits)
    value = float(digits)
    if not math.isfinite(value):
        raise RequestError(Kind.MALFORMED, "the body holds a number too large for a double")
    return value


def _check_length(digits: str) -> None:
    if len(digits) > MAX_NUMBER:
        raise RequestError(Kind.MALFORMED, f"the body holds a number of more than {MAX_NUMBER} characters")


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        children: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                children += item.values()
            elif isinstance(item, list):
                children += item
        if not children:
            return False
        level = children
    return any(isinstance(item, dict | list) for item in level)
