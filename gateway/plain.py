"""Errors that no route words: unknown paths, wrong methods, bodies refused before a route is chosen.

Under `/v1` they look like OpenAI's, elsewhere like TGI's.
"""

import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

REFUSED_EARLY = (404, 405, 408, 413)


def plain_error(path: str, status: int, message: str) -> Response:
    """`message` in the dialect spoken at `path`."""
    if path.startswith("/v1/"):
        body: dict[str, object] = {
            "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        }
    else:
        body = {"error": message, "error_type": "validation"}
    return Response(json.dumps(body), status, media_type="application/json")


def documented(statuses: Iterable[int | str], schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI is told of the errors a router answers: `statuses` of its own and those refused before it."""
    content = {"application/json": {"schema": schema}}
    every = sorted({*map(int, statuses), *REFUSED_EARLY})
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in every}
