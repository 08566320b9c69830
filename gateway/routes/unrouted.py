"""Errors that no route words: unknown paths, wrong methods, bodies refused before a route is chosen.

Under `/v1` they look like OpenAI's, elsewhere like TGI's.
"""

from http import HTTPStatus

from starlette.responses import JSONResponse, Response

from gateway.errors import RequestError
from gateway.routes.openai import errors as openai
from gateway.routes.tgi import errors as tgi

OF_THE_BODY = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def plain_error(path: str, status: int, message: str) -> Response:
    """`message` in the dialect spoken at `path`."""
    if _is_openai(path):
        body = openai.error_object(message, "invalid_request_error")
    else:
        body = tgi.error_object(message, "validation" if status in OF_THE_BODY else None)
    return JSONResponse(body, status)


def plain_refusal(path: str, error: RequestError) -> Response:
    """`error` likewise."""
    return openai.error_response(error) if _is_openai(path) else tgi.error_response(error)


def _is_openai(path: str) -> bool:
    return path.startswith("/v1/")
