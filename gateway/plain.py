"""Errors that no route words: unknown paths, wrong methods, bodies refused before a route is chosen.

Under `/v1` they look like OpenAI's, elsewhere like TGI's.
"""

from starlette.responses import JSONResponse, Response

from gateway.openai import errors as openai
from gateway.tgi import errors as tgi


def plain_error(path: str, status: int, message: str) -> Response:
    """`message` in the dialect spoken at `path`."""
    if path.startswith("/v1/"):
        body = openai.error_object(message, "invalid_request_error")
    else:
        body = tgi.error_object(message, "validation")
    return JSONResponse(body, status)
