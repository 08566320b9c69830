"""Errors that no route words: unknown paths, wrong methods, requests refused before a route is chosen.

Under `/v1` they look like OpenAI's, elsewhere like TGI's.
"""

from starlette.responses import JSONResponse, Response

from gateway.errors import RequestError
from gateway.routes.openai import errors as openai
from gateway.routes.tgi import errors as tgi


def no_such_route(path: str, status: int, message: str) -> Response:
    """`message` (404 or 405) in the dialect spoken at `path`."""
    if _is_openai(path):
        return JSONResponse(openai.error_object(message, "invalid_request_error"), status)
    return JSONResponse(tgi.error_object(message, None), status)


def refusal(path: str, error: RequestError) -> Response:
    """`error` in the dialect spoken at `path`."""
    return openai.error_response(error) if _is_openai(path) else tgi.error_response(error)


def _is_openai(path: str) -> bool:
    return path.startswith("/v1/")
