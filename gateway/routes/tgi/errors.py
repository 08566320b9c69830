"""Errors in TGI's words: `{"error": …, "error_type": …}` with TGI's statuses.

Where TGI answers plain text or an empty body, this server answers JSON with the same status, because TGI's clients
parse JSON. They choose the exception by `error_type`, and by the status only if there is no `error_type`: so an unknown
path, a wrong method and a wrong key have none.
"""

from collections.abc import Awaitable
from typing import Any

from fastapi import Response
from starlette.responses import JSONResponse

from gateway.errors import UNREAD, Kind, RequestError, as_request_error
from gateway.http.encoding import json_bytes
from gateway.http.openapi import refusals
from gateway.http.refusing_route import RefusingRoute, answered

# kind: status, error_type, prefix of the message
WORDING: dict[Kind, tuple[int, str | None, str]] = {
    Kind.HEAD_TOO_LONG: (431, None, ""),
    Kind.TWO_LENGTHS: (400, "validation", ""),
    Kind.MALFORMED: (400, "validation", "Failed to parse the request body as JSON: "),
    Kind.MEDIA_TYPE: (415, "validation", ""),
    Kind.BODY_TOO_LONG: (413, "validation", ""),
    Kind.BODY_TIMEOUT: (408, None, ""),
    Kind.UNAUTHORIZED: (401, None, ""),
    Kind.SHAPE: (422, "validation", "Failed to deserialize the JSON body into the target type: "),
    Kind.INVALID: (422, "validation", "Input validation error: "),
    Kind.CONTEXT_LENGTH: (422, "validation", "Input validation error: "),
    Kind.TEMPLATE: (422, "template_error", "Template error: "),
    Kind.MODEL_NOT_FOUND: (404, None, ""),
    Kind.ADAPTER_GONE: (422, "validation", "Input validation error: "),
    Kind.NOT_KEPT: (404, None, ""),  # as the next, of OpenAI's routes alone
    Kind.PREVIOUS_NOT_KEPT: (422, "validation", ""),
    Kind.OVERLOADED: (429, "overloaded", ""),
    Kind.UNAVAILABLE: (503, "unavailable", ""),
    Kind.DEADLINE: (504, "generation", "Request failed during generation: "),
    Kind.GENERATION: (424, "generation", "Request failed during generation: "),
    Kind.INTERNAL: (500, "generation", "Request failed during generation: "),
}
SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
}
RESPONSES = refusals((status for status, _, _ in WORDING.values()), SCHEMA)


def error_object(message: str, error_type: str | None) -> dict[str, Any]:
    return {"error": message} if error_type is None else {"error": message, "error_type": error_type}


def error_body(error: RequestError) -> dict[str, Any]:
    _, error_type, prefix = WORDING[error.kind]
    return error_object(prefix + error.message, error_type)


def error_response(error: RequestError) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.kind is Kind.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if error.kind in UNREAD:
        headers["connection"] = "close"
    status = WORDING[error.kind][0]
    return JSONResponse(error_body(error), status, headers)


def no_such_route(status: int, message: str) -> Response:
    """An unknown path (404) or method (405)."""
    return JSONResponse(error_object(message, None), status)


def error_event(error: Exception) -> bytes:
    """The last event of a stream that breaks."""
    return b"data: " + json_bytes(error_body(as_request_error(error))) + b"\n\n"


class TgiRoute(RefusingRoute):
    """A route whose exceptions become TGI's errors."""

    refusal = staticmethod(error_response)


async def with_error_answers(work: Awaitable[Response]) -> Response:
    """The answer of `work`, or its exception in TGI's words."""
    return await answered(work, error_response)
