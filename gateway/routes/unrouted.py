"""Errors outside every route, in the dialect spoken at their path: requests refused before a route is chosen, unknown
paths, wrong methods.
"""

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from gateway.errors import RequestError
from gateway.routes.registry import ROUTERS, dialect_at


def refusal(path: str, error: RequestError) -> Response:
    """The answer to a request to `path` that is refused for `error`."""
    return dialect_at(path).refusal(error)


async def no_such_route(request: Request, error: Exception) -> Response:
    """The answer to a path that does not exist, or not with this method: FastAPI's handler of HTTPException."""
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: /docs lists every route"
    response = dialect_at(request.scope["path"]).no_such_route(error.status_code, message)
    response.headers.update(error.headers or {})
    if allowed := response.headers.get("allow"):
        methods = _methods(request) or {*allowed.split(", ")}
        response.headers["allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    return response


def _methods(request: Request) -> set[str]:
    """The methods of every route at the request's path; Starlette names those of the first route it finds. A path that
    is a route's own is no other's: not `input_tokens` a response of that id.
    """
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    found = [each for each in routes if each.matches(request.scope)[0] is not Match.NONE]
    own = [each for each in found if not each.param_convertors]
    return {name for each in own or found for name in each.methods or ()}
