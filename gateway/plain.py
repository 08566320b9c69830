"""Errors that no route words: unknown paths, wrong methods, bodies refused before a route is chosen.

Under `/v1` they look like OpenAI's, elsewhere like TGI's.
"""

import json

from starlette.responses import Response


def plain_error(path: str, status: int, message: str) -> Response:
    """`message` in the dialect spoken at `path`."""
    if path.startswith("/v1/"):
        body: dict[str, object] = {
            "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        }
    else:
        body = {"error": message, "error_type": "validation"}
    return Response(json.dumps(body), status, media_type="application/json")
