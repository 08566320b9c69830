"""Errors in Triton's words, `{"error": …}`, with its HTTP statuses; and the gRPC statuses of the same.

An overload is a 503 as Triton's, whose clients know no 429; the header `retry-after` says when to come again.
"""

import grpc
from fastapi import Response
from starlette.responses import JSONResponse

from gateway.errors import Kind, RequestError, as_request_error
from gateway.http.encoding import json_bytes
from gateway.http.openapi import refusals
from gateway.http.refusing_route import RefusingRoute
from gateway.routes.openai.errors import error_headers

Code = grpc.StatusCode

# kind: HTTP status, gRPC status
WORDING: dict[Kind, tuple[int, grpc.StatusCode]] = {
    Kind.HEAD_TOO_LONG: (431, Code.RESOURCE_EXHAUSTED),
    Kind.TWO_LENGTHS: (400, Code.INVALID_ARGUMENT),
    Kind.MALFORMED: (400, Code.INVALID_ARGUMENT),
    Kind.MEDIA_TYPE: (415, Code.INVALID_ARGUMENT),
    Kind.BODY_TOO_LONG: (413, Code.RESOURCE_EXHAUSTED),
    Kind.BODY_TIMEOUT: (408, Code.DEADLINE_EXCEEDED),
    Kind.UNAUTHORIZED: (401, Code.UNAUTHENTICATED),
    Kind.SHAPE: (400, Code.INVALID_ARGUMENT),
    Kind.INVALID: (400, Code.INVALID_ARGUMENT),
    Kind.CONTEXT_LENGTH: (400, Code.INVALID_ARGUMENT),
    Kind.TEMPLATE: (400, Code.INVALID_ARGUMENT),
    Kind.MODEL_NOT_FOUND: (404, Code.NOT_FOUND),
    Kind.ADAPTER_GONE: (404, Code.NOT_FOUND),
    Kind.NOT_KEPT: (404, Code.NOT_FOUND),
    Kind.PREVIOUS_NOT_KEPT: (400, Code.INVALID_ARGUMENT),
    Kind.OVERLOADED: (503, Code.UNAVAILABLE),
    Kind.UNAVAILABLE: (503, Code.UNAVAILABLE),
    Kind.DEADLINE: (504, Code.DEADLINE_EXCEEDED),
    Kind.GENERATION: (500, Code.INTERNAL),
    Kind.INTERNAL: (500, Code.INTERNAL),
}
SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
RESPONSES = refusals((status for status, _ in WORDING.values()), SCHEMA)


def error_response(error: RequestError) -> Response:
    return JSONResponse({"error": error.message}, WORDING[error.kind][0], error_headers(error))


def no_such_route(status: int, message: str) -> Response:
    """An unknown path (404) or method (405)."""
    return JSONResponse({"error": message}, status)


def error_event(error: Exception) -> bytes:
    """The last event of a stream that breaks."""
    return b"data: " + json_bytes({"error": as_request_error(error).message}) + b"\n\n"


class KServeRoute(RefusingRoute):
    """A route whose exceptions become Triton's errors."""

    refusal = staticmethod(error_response)
