"""The HTTP application: which routes, behind which guards.

Middleware is pure ASGI: Starlette's base class for it buffers streams. Nothing is started or stopped here: engine and
server belong to the launcher.
"""

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.guard import BodyGuard, RequestLimit
from gateway.http.refusals import PacedRefusals
from gateway.observability.access_log import QUIET_PATHS, AccessLog
from gateway.observability.exposition import CONTENT_TYPE
from gateway.request.auth import may_know, require_key
from gateway.request.state import Gateway, gateway_of
from gateway.routes import health, mixed, vertex
from gateway.routes.docs import PAGE
from gateway.routes.openai import routes as openai
from gateway.routes.openai.errors import RESPONSES as OPENAI_ERRORS
from gateway.routes.tgi import routes as tgi
from gateway.routes.tgi.errors import RESPONSES as TGI_ERRORS
from gateway.routes.tgi.errors import TgiRoute
from gateway.routes.unrouted import no_such_route, refusal

pages = APIRouter(route_class=TgiRoute, include_in_schema=False)
scrapes = APIRouter(route_class=TgiRoute, include_in_schema=False)  # no key needed: few scrapers carry one
TGI = (tgi.router, mixed.router, vertex.router, pages)
OPENAI = (openai.router, openai.helpers)
OPEN = (health.router, scrapes)
MAX_REQUESTS = 1024


def create_app(gateway: Gateway, max_requests: int = MAX_REQUESTS) -> FastAPI:
    """The application on the main port, for at most `max_requests` requests at work."""
    app = FastAPI(
        title="Text generation",
        description="TGI's routes and OpenAI's /v1 in front of a JAX engine.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # to a place made of the Host header, where the key would be sent
        servers=[{"url": gateway.options.root_path}] if gateway.options.root_path else None,
    )
    app.state.gateway = gateway
    guarded = [Depends(require_key)]
    predictions = APIRouter(route_class=TgiRoute, include_in_schema=False)
    if route := gateway.options.aip_predict_route:
        predictions.add_api_route(route, vertex.vertex, methods=["POST"])
    if route := gateway.options.aip_health_route:  # first: both may lie within /v1/models/…
        app.add_api_route(route, health.ready, methods=["GET"], include_in_schema=False)
    for router in (predictions, *TGI):
        app.include_router(router, dependencies=guarded, responses=TGI_ERRORS)
    for router in OPENAI:
        app.include_router(router, dependencies=guarded, responses=OPENAI_ERRORS)
    for router in () if gateway.options.admin_exclusive else OPEN:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _no_route)
    probes = frozenset(filter(None, (*QUIET_PATHS, gateway.options.aip_health_route)))
    app.add_middleware(BodyGuard, limit=gateway.options.payload_limit, refuse=refusal)
    app.add_middleware(RequestLimit, most=max_requests, exempt=probes, refuse=refusal)
    app.add_middleware(PacedRefusals, busy=lambda: gateway.admission.active > 0)
    if gateway.options.cors_allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=gateway.options.cors_allow_origin,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),  # OpenAI's SDK sends a dozen of its own
            expose_headers=("x-request-id", "retry-after", "x-should-retry"),
        )
    app.add_middleware(HeadAsGet)
    app.add_middleware(AccessLog, quiet=probes)
    if gateway.options.root_path:
        app.add_middleware(RootPath, prefix=gateway.options.root_path)
    app.add_middleware(OriginForm)
    return app


class HeadAsGet:
    """ASGI: whatever takes GET takes HEAD, by which some health checks probe. The server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)


class OriginForm:
    """ASGI: a request's target may be a whole URL, as proxies are sent it: its path counts (RFC 9112, 3.2.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/"):
            scheme, found, rest = scope["path"].partition("://")
            if found and scheme.lower() in ("http", "https"):
                _, _, raw_rest = scope["raw_path"].partition(b"://")
                path, raw_path = rest.partition("/")[2], raw_rest.partition(b"/")[2]
                scope = {**scope, "path": f"/{path}", "raw_path": b"/" + raw_path}
        await self._app(scope, receive, send)


class RootPath:
    """ASGI: routes are the same below `prefix`, for a proxy that does not strip it, and for who comes around it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", "")).removeprefix(self._prefix) or "/"
        await self._app({**scope, "path": path} if path.startswith("/") else scope, receive, send)


@scrapes.get("/metrics")
async def metrics(gateway: Gateway = Depends(gateway_of), named: bool = Depends(may_know)) -> Response:
    return Response(gateway.metrics.render(named=named), headers={"content-type": CONTENT_TYPE})


@pages.get("/openapi.json")
@pages.get("/api-doc/openapi.json")
async def openapi_schema(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


@pages.get("/docs")
async def docs() -> Response:
    return HTMLResponse(PAGE)


async def _no_route(request: Request, error: Exception) -> Response:
    """A path or method that does not exist."""
    assert isinstance(error, HTTPException)
    response = no_such_route(request.scope["path"], error.status_code, f"{error.detail}: /docs lists every route")
    response.headers.update(error.headers or {})
    if allowed := response.headers.get("allow"):
        methods = {*allowed.split(", "), *_methods(request)}
        response.headers["allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    return response


def _methods(request: Request) -> set[str]:
    """Of every route at the request's path: Starlette names those of the first it finds."""
    routes = [route for router in (*TGI, *OPENAI, *OPEN) for route in router.routes if isinstance(route, APIRoute)]
    return {name for each in routes if each.matches(request.scope)[0] is not Match.NONE for name in each.methods or ()}
