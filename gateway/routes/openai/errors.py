"""Errors in OpenAI's words: the error object, its codes, and whether clients should try again.

OpenAI's SDKs repeat requests after 408, 409, 429 and every 5xx unless `x-should-retry` says otherwise. A request that
fails for reasons of its own would fail, and cost, three times.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse

from gateway.errors import CLIENT_CLOSED_REQUEST, UNREAD, ClientGone, Kind, RequestError, as_request_error
from gateway.http.encoding import json_bytes
from gateway.http.openapi import refusals
from gateway.routes.openai.identity import request_id

# kind: status, type, code
WORDING: dict[Kind, tuple[int, str, str | None]] = {
    Kind.HEAD_TOO_LONG: (431, "invalid_request_error", None),
    Kind.TWO_LENGTHS: (400, "invalid_request_error", None),
    Kind.MALFORMED: (400, "invalid_request_error", None),
    Kind.MEDIA_TYPE: (415, "invalid_request_error", None),
    Kind.BODY_TOO_LONG: (413, "invalid_request_error", None),
    Kind.BODY_TIMEOUT: (408, "invalid_request_error", None),
    Kind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    Kind.SHAPE: (400, "invalid_request_error", None),
    Kind.INVALID: (400, "invalid_request_error", None),
    Kind.CONTEXT_LENGTH: (400, "invalid_request_error", "context_length_exceeded"),
    Kind.TEMPLATE: (400, "invalid_request_error", None),
    Kind.MODEL_NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    Kind.ADAPTER_GONE: (404, "invalid_request_error", "model_not_found"),
    Kind.NOT_KEPT: (404, "invalid_request_error", None),
    Kind.PREVIOUS_NOT_KEPT: (400, "invalid_request_error", "previous_response_not_found"),
    Kind.OVERLOADED: (429, "rate_limit_error", "overloaded"),
    Kind.UNAVAILABLE: (503, "server_error", "engine_unavailable"),
    Kind.DEADLINE: (504, "server_error", "deadline_exceeded"),
    Kind.GENERATION: (500, "server_error", "generation_failed"),
    Kind.INTERNAL: (500, "server_error", "internal_error"),
}
RETRIED = (Kind.OVERLOADED, Kind.UNAVAILABLE)
NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": NULLABLE,
                "code": NULLABLE,
            },
        }
    },
}
RESPONSES = refusals((status for status, _, _ in WORDING.values()), SCHEMA)


def error_object(message: str, type: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """`{"error": {…}}`, always with all four keys."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def error_body(error: RequestError) -> dict[str, Any]:
    _, type, code = WORDING[error.kind]
    return error_object(error.message, type, param=error.param, code=code)


def error_headers(error: RequestError) -> dict[str, str]:
    """What tells a client, whichever of the SDKs it has, whether and when to try again."""
    headers = {"x-should-retry": "true" if error.kind in RETRIED else "false"}
    if error.kind is Kind.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.kind in UNREAD:
        headers["connection"] = "close"
    return headers


def error_response(error: RequestError) -> Response:
    return JSONResponse(error_body(error), WORDING[error.kind][0], error_headers(error))


def no_such_route(status: int, message: str) -> Response:
    """An unknown path (404) or method (405)."""
    return JSONResponse(error_object(message, "invalid_request_error"), status)


def error_event(error: Exception) -> bytes:
    """The last event of a stream that breaks; no `[DONE]` follows."""
    return b"data: " + json_bytes(error_body(as_request_error(error))) + b"\n\n"


class OpenAIRoute(APIRoute):
    """A route whose exceptions become OpenAI's errors, and whose answers carry the request's id."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await with_error_answers(request, handle(request))

        return handle_request


async def with_error_answers(request: Request, work: Awaitable[Response]) -> Response:
    """The answer of `work`, or its exception in OpenAI's words."""
    try:
        response = await work
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except Exception as error:
        response = error_response(as_request_error(error))
    response.headers["x-request-id"] = request_id(request)
    return response
