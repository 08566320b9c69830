"""The HTTP application on the main port: routes and middleware.

All middleware is pure ASGI, because Starlette's base class for it buffers streams. Nothing is started or stopped here:
engine and server belong to the launcher.
"""

from fastapi import Depends, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from gateway.config.options import Options
from gateway.http.refusal_pacing import PacedRefusals
from gateway.http.request_limits import BodyGuard, RequestLimit
from gateway.http.rewrites import HeadAsGet, OriginForm, RootPath
from gateway.observability.access_log import QUIET_PATHS, AccessLog
from gateway.request.auth import require_key
from gateway.request.gateway_state import Gateway
from gateway.routes import feed, health, pages, vertex
from gateway.routes.openai import adapters
from gateway.routes.openai import errors as openai_errors
from gateway.routes.registry import DIALECTS, KEYLESS
from gateway.routes.unrouted import no_such_route, refusal

MAX_REQUESTS = 1024


def create_app(gateway: Gateway, max_requests: int = MAX_REQUESTS) -> FastAPI:
    """The application on the main port, for at most `max_requests` requests at work."""
    app = FastAPI(
        title="Text generation",
        description="TGI's routes, OpenAI's /v1, Anthropic's /v1/messages, KServe's /v2 and KoboldAI's /api.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # a redirect goes where the Host header says, and takes the key along
        servers=[{"url": gateway.options.root_path}] if gateway.options.root_path else None,
    )
    app.state.gateway = gateway
    _add_routes(app, gateway.options)
    _add_middleware(app, gateway, max_requests)
    return app


def _add_routes(app: FastAPI, options: Options) -> None:
    guarded = [Depends(require_key)]
    if route := options.aip_health_route:  # this one and the next come first: both may lie within /v1/models/…
        app.add_api_route(route, health.ready, methods=["GET"], include_in_schema=False)
    if route := options.aip_predict_route:
        app.include_router(vertex.at(route), dependencies=guarded)
    for dialect in DIALECTS:
        for router in dialect.routers:
            app.include_router(router, dependencies=guarded, responses=dialect.responses)
    if options.allow_runtime_lora_updating:
        app.include_router(adapters.router, dependencies=guarded, responses=openai_errors.RESPONSES)
    if not options.disable_ui:
        app.include_router(feed.router, dependencies=guarded)
        app.include_router(pages.router)  # before the probes: `/` is a page to browsers and a probe to others
    for router in () if options.admin_exclusive else KEYLESS:
        app.include_router(router)
    app.add_exception_handler(HTTPException, no_such_route)


def _add_middleware(app: FastAPI, gateway: Gateway, max_requests: int) -> None:
    """From the innermost to the outermost, which sees a request first."""
    options = gateway.options
    probes = frozenset(filter(None, (*QUIET_PATHS, options.aip_health_route)))
    app.add_middleware(BodyGuard, limit=options.payload_limit, refuse=refusal, raised=lambda: gateway.payload_limit)
    app.add_middleware(RequestLimit, limit=max_requests, exempt=probes, refuse=refusal)
    app.add_middleware(PacedRefusals, busy=lambda: gateway.admission.active > 0)
    if options.cors_allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_allow_origin,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),  # OpenAI's SDK sends a dozen of its own
            expose_headers=("x-request-id", "request-id", "retry-after", "x-should-retry"),
        )
    app.add_middleware(HeadAsGet)
    app.add_middleware(AccessLog, quiet=probes)
    if options.root_path:
        app.add_middleware(RootPath, prefix=options.root_path)
    app.add_middleware(OriginForm)
