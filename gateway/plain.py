"""Errors that no route words: unknown paths, wrong methods, bodies refused before a route is chosen.

Under `/v1` they look like OpenAI's, elsewhere like TGI's.
"""

from http import HTTPStatus

from starlette.responses import JSONResponse, Response

from gateway.openai import errors as openai
from gateway.tgi import errors as tgi

OF_THE_BODY = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def plain_error(path: str, status: int, message: str) -> Response:
    """`message` in the dialect spoken at `path`."""
    if path.startswith("/v1/"):
        body = openai.error_object(message, "invalid_request_error")
    else:
        body = tgi.error_object(message, "validation" if status in OF_THE_BODY else None)
    return JSONResponse(body, status)
