"""Request bodies: from bytes to a strict model, or to a clear refusal.

Two parsers read the same bytes. pydantic validates them in strict mode; it refuses bad UTF-8, a BOM and lone
surrogates, and in declared fields NaN and deep nesting. Python's parser then looks for what pydantic lets pass:
duplicate keys, and depth, NaN and infinite numbers inside untyped or unknown fields. It also refuses whole numbers of
more than 4,300 digits.

The cost of parsing depends on the number of values, not of bytes: 2 MB of text take 3 ms, 2 MB of empty lists 2 s. So
values are counted first, which takes 3 ms, and bounded. A large body is parsed in a thread, which holds the interpreter
for at most 40 ms at a time [measured for 262,144 token ids, 65,536 names in one object and 16,384 empty lists].
"""

import re
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect

from gateway.errors import ClientGone, Kind, RequestError
from gateway.http.encoding import in_thread
from gateway.http.strict_json import NotStrictJson, strict_json
from gateway.http.validation_messages import describe

MAX_VALUES = 262_144  # twice the token ids of the longest prompts
MAX_NAMES = 65_536  # of fields: 200,000 in one object hold the interpreter for 130 ms
MAX_CONTAINERS = 16_384  # objects and lists: one costs as much as fifty numbers
LARGE = 64 << 10  # bytes; a smaller body is parsed within 10 ms
NOT_JSON = "the body is not valid JSON"
MANY = 500  # objects: where they are a JSON schema's, each takes 20 us to check

Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """No coercion, finite floats; unknown fields are ignored, as by every server of these protocols.

    Lists that may be long are declared `fail_fast`: pydantic would make an error for each of a million wrong entries.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The request's JSON body as `model`.

    Raises:
        RequestError: MEDIA_TYPE, MALFORMED (not JSON) or SHAPE (not this model).
    """
    return await parse_body(await _raw(request), model)


async def parse_body(raw: bytes, model: type[Model]) -> Model:
    """JSON as `model`. Raises RequestError: MALFORMED or SHAPE."""
    takes_long = len(raw) > LARGE or raw.count(b"{") > MANY
    return await in_thread(lambda: _validated(raw, model), when=takes_long)


async def parse_object(raw: bytes) -> dict[str, Any]:
    """JSON that must be an object, of whichever fields. Raises RequestError: MALFORMED or SHAPE."""
    value = await in_thread(lambda: _counted(raw), when=len(raw) > LARGE)
    if not isinstance(value, dict):
        raise RequestError(Kind.SHAPE, "the body must be a JSON object")
    return value


def _validated(raw: bytes, model: type[Model]) -> Model:
    _check_counts(raw)
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error, raw) from None
    _checked(raw)
    return body


async def field_names(request: Request) -> frozenset[str]:
    """The names of the fields of the request's JSON object, by which routes of several dialects tell whose body it is.

    Raises:
        RequestError: MEDIA_TYPE, MALFORMED (not JSON) or SHAPE (not an object).
    """
    return frozenset(await parse_object(await _raw(request)))


async def _raw(request: Request) -> bytes:
    _check_media_type(request)
    return await raw_body(request)


async def raw_body(request: Request) -> bytes:
    """The body's bytes, whatever they are. Raises ClientGone."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise ClientGone from None


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    is_json = media_type.startswith("application/") and (media_type == "application/json" or media_type[-5:] == "+json")
    if not is_json:
        raise RequestError(Kind.MEDIA_TYPE, "the request needs the header `content-type: application/json`")
    refuse_compressed(request)


def refuse_compressed(request: Request) -> None:
    """Raises RequestError: MEDIA_TYPE."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(Kind.MEDIA_TYPE, "compressed request bodies are not accepted")


def _refusal(error: ValidationError, raw: bytes) -> RequestError:
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return _unread(raw, first["msg"])
    message, field = describe(error)
    return RequestError(Kind.SHAPE, message, param=field)


def _unread(raw: bytes, told: str) -> RequestError:
    """Why pydantic, which has `told` where, cannot read `raw`: what we ask beyond JSON, or else a wrong letter."""
    try:
        _counted(raw)
    except RequestError as error:
        if error.message != NOT_JSON:
            return error
    place = re.search(r"line \d+ column \d+$", told)
    return RequestError(Kind.MALFORMED, f"{NOT_JSON}{f' at {place[0]}' if place else ''}")


def _check_counts(raw: bytes) -> None:
    """Refuse an empty body, and more values than can be parsed in bounded time. What looks like a value inside a string
    does not count.
    """
    if not raw.strip():
        raise RequestError(Kind.MALFORMED, "the body is empty, it must be a JSON object")
    if _excess(raw) and (excess := _excess(_outside_strings(raw))):
        raise RequestError(Kind.SHAPE, f"the body holds more than {excess}")


def _excess(written: bytes) -> str:
    """The limit that the JSON exceeds; empty if it exceeds none."""
    containers = written.count(b"{") + written.count(b"[")
    if containers > MAX_CONTAINERS:
        return f"{MAX_CONTAINERS} objects and lists"
    if written.count(b":") > MAX_NAMES:
        return f"{MAX_NAMES} names"
    return f"{MAX_VALUES} values" if containers + written.count(b",") > MAX_VALUES else ""


def _outside_strings(raw: bytes) -> bytes:
    """`raw` without its strings: unescaped quotes split it into parts outside and inside of strings, by turns."""
    return b"".join(raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _counted(raw: bytes) -> Any:
    """The JSON value of `raw`, which pydantic does not see. Raises RequestError."""
    _check_counts(raw)
    try:
        return _checked(raw.decode())
    except UnicodeDecodeError:
        raise RequestError(Kind.MALFORMED, "the body is not valid UTF-8") from None


def _checked(raw: bytes | str) -> Any:
    """The JSON value of `raw`. Raises RequestError for whatever pydantic lets pass, and of text for half characters."""
    try:
        return strict_json(raw)
    except NotStrictJson as error:
        raise RequestError(Kind.MALFORMED, f"the body {error}") from None
