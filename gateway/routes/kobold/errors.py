"""Errors in KoboldCpp's words, `{"detail": {"msg", "type"}}`.

An overload is a 503: that is the status after which KoboldAI's clients try again, SillyTavern fifty times.
"""

from typing import Any

from fastapi import Response
from starlette.responses import JSONResponse

from gateway.errors import Kind, RequestError, as_request_error
from gateway.http.encoding import json_bytes
from gateway.http.openapi import refusals
from gateway.http.refusing_route import RefusingRoute
from gateway.routes.openai.errors import error_headers

BAD, BUSY, UNAUTHORIZED = "bad_input", "service_unavailable", "unauthorized"
# kind: status, type
WORDING: dict[Kind, tuple[int, str]] = {
    Kind.HEAD_TOO_LONG: (431, BAD),
    Kind.TWO_LENGTHS: (400, BAD),
    Kind.MALFORMED: (400, BAD),
    Kind.MEDIA_TYPE: (415, BAD),
    Kind.BODY_TOO_LONG: (413, BAD),
    Kind.BODY_TIMEOUT: (408, BAD),
    Kind.UNAUTHORIZED: (401, UNAUTHORIZED),
    Kind.SHAPE: (400, BAD),
    Kind.INVALID: (400, BAD),
    Kind.CONTEXT_LENGTH: (400, BAD),
    Kind.TEMPLATE: (400, BAD),
    Kind.MODEL_NOT_FOUND: (404, BAD),
    Kind.ADAPTER_GONE: (404, BAD),
    Kind.NOT_KEPT: (404, BAD),
    Kind.PREVIOUS_NOT_KEPT: (400, BAD),
    Kind.OVERLOADED: (503, BUSY),
    Kind.UNAVAILABLE: (503, BUSY),
    Kind.DEADLINE: (504, BUSY),
    Kind.GENERATION: (500, BUSY),
    Kind.INTERNAL: (500, BUSY),
}
SCHEMA = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {
            "type": "object",
            "required": ["msg", "type"],
            "properties": {"msg": {"type": "string"}, "type": {"enum": [BAD, BUSY, UNAUTHORIZED]}},
        }
    },
}
RESPONSES = refusals((status for status, _ in WORDING.values()), SCHEMA)


def error_object(message: str, type: str) -> dict[str, Any]:
    return {"detail": {"msg": message, "type": type}}


def error_body(error: RequestError) -> dict[str, Any]:
    return error_object(error.message, WORDING[error.kind][1])


def error_response(error: RequestError, **beside: Any) -> Response:
    """The answer to a refused request, with the fields `beside` its detail."""
    return JSONResponse({**beside, **error_body(error)}, WORDING[error.kind][0], error_headers(error))


def no_such_route(status: int, message: str) -> Response:
    """An unknown path (404) or method (405)."""
    return JSONResponse(error_object(message, BAD), status)


def error_event(error: Exception) -> bytes:
    """The last event of a stream that breaks."""
    return b"event: error\ndata: " + json_bytes(error_body(as_request_error(error))) + b"\n\n"


class KoboldRoute(RefusingRoute):
    """A route whose exceptions become KoboldCpp's errors."""

    refusal = staticmethod(error_response)
