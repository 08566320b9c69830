"""Errors in Anthropic's words: the error object, its types, and whether clients should try again.

Anthropic's SDKs repeat requests as OpenAI's do, after 408, 409, 429 and every 5xx unless `x-should-retry` says no. An
overload is a 429 here; 529, which Anthropic sends for one of its own, is none of ours.

Fields are named as Anthropic's clients know them. A chat is checked in OpenAI's words, so some names are put back.
"""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse

from gateway.errors import (
    CLIENT_CLOSED_REQUEST,
    ClientGone,
    ContextExceeded,
    Kind,
    RequestError,
    as_request_error,
)
from gateway.http.encoding import json_bytes
from gateway.http.openapi import refusals
from gateway.routes.openai.errors import error_headers
from gateway.routes.openai.identity import request_id

# kind: status, type
WORDING: dict[Kind, tuple[int, str]] = {
    Kind.HEAD_TOO_LONG: (431, "invalid_request_error"),
    Kind.TWO_LENGTHS: (400, "invalid_request_error"),
    Kind.MALFORMED: (400, "invalid_request_error"),
    Kind.MEDIA_TYPE: (415, "invalid_request_error"),
    Kind.BODY_TOO_LONG: (413, "request_too_large"),
    Kind.BODY_TIMEOUT: (408, "timeout_error"),
    Kind.UNAUTHORIZED: (401, "authentication_error"),
    Kind.SHAPE: (400, "invalid_request_error"),
    Kind.INVALID: (400, "invalid_request_error"),
    Kind.CONTEXT_LENGTH: (400, "invalid_request_error"),
    Kind.TEMPLATE: (400, "invalid_request_error"),
    Kind.MODEL_NOT_FOUND: (404, "not_found_error"),
    Kind.ADAPTER_GONE: (404, "not_found_error"),
    Kind.NOT_KEPT: (404, "not_found_error"),
    Kind.PREVIOUS_NOT_KEPT: (400, "invalid_request_error"),
    Kind.OVERLOADED: (429, "rate_limit_error"),
    Kind.UNAVAILABLE: (503, "overloaded_error"),
    Kind.DEADLINE: (504, "timeout_error"),
    Kind.GENERATION: (500, "api_error"),
    Kind.INTERNAL: (500, "api_error"),
}
# What a chat calls a field, and what the Messages API does.
RENAMED = (
    (re.compile(r"\bstop\b(?= takes)"), "stop_sequences"),
    (re.compile(r"\btools(\[\d+\])\.function\.parameters\b"), r"tools\1.input_schema"),
    (re.compile(r"\bresponse_format\.json_schema(\.schema)?\b"), "output_config.format.schema"),
    (re.compile(r"\bresponse_format\b"), "output_config.format"),
    (re.compile(r"\breasoning_effort none\b"), "thinking of type disabled"),
    (re.compile(r"\bmessages\[\d+\]\.content\[\d+\]\.image_url\b"), "messages"),  # counted as a chat's are
    (re.compile(r"\bthinking_token_budget\b"), "thinking.budget_tokens"),
)
# By the field at fault, what a program finds in an error's `details`. Anthropic's SDK (2.14) runs tools within a thread
# that the server keeps, and goes on without one after this code only.
DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
_INDEX = re.compile(r"(?<=[\w\]])\[(\d+)\]")
SCHEMA = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
        },
        "request_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
RESPONSES = refusals((status for status, _ in WORDING.values()), SCHEMA)


def error_object(message: str, type: str, id: str | None = None) -> dict[str, Any]:
    """`id` is the request's; None for one that reached no route."""
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": id}


def error_body(error: RequestError, id: str | None = None) -> dict[str, Any]:
    body = error_object(_message(error), WORDING[error.kind][1], id)
    if error.param in DETAILS:
        body["error"]["details"] = DETAILS[error.param]
    return body


def error_response(error: RequestError, id: str | None = None) -> Response:
    return JSONResponse(error_body(error, id), WORDING[error.kind][0], error_headers(error))


def no_such_route(status: int, message: str) -> Response:
    """An unknown path (404) or method (405)."""
    return JSONResponse(error_object(message, "not_found_error" if status == 404 else "invalid_request_error"), status)


def error_event(error: Exception, id: str) -> bytes:
    """The last event of a stream that breaks."""
    return b"event: error\ndata: " + json_bytes(error_body(as_request_error(error), id)) + b"\n\n"


def _message(error: RequestError) -> str:
    """The message, with fields as Anthropic's clients know them: `messages.0.content`."""
    if isinstance(error, ContextExceeded):
        return _too_long(error)
    message = error.message
    for pattern, name in RENAMED:
        message = pattern.sub(name, message)
    return _INDEX.sub(r".\1", message)


def _too_long(error: ContextExceeded) -> str:
    """Agents look for these words and numbers: they shorten the conversation, or ask for as many tokens as fit."""
    if not error.wanted:
        return f"prompt is too long: {error.prompt} tokens > {error.most} maximum"
    sizes = f"{error.prompt} + {error.wanted} > {error.most}"
    return f"input length and `max_tokens` exceed context limit: {sizes}, ask for fewer tokens or send fewer"


class AnthropicRoute(APIRoute):
    """A route whose exceptions become Anthropic's errors, and whose answers carry the request's id."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            try:
                response = await handle(request)
            except ClientGone:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            except Exception as error:
                response = error_response(as_request_error(error), request_id(request))
            response.headers["request-id"] = request_id(request)
            return response

        return handle_request
