"""The admin listener's application: probes, metrics and replicas on a port of their own (`--admin-port`).

It answers however busy the main port is, asks for no key and names the model: whoever reaches it is an operator. What
changes something is guarded all the same, see `gateway.routes.replicas`.
"""

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.errors import RequestError
from gateway.observability.access_log import AccessLog
from gateway.request.gateway_state import Gateway
from gateway.routes import health, metrics, replicas
from gateway.routes.tgi import errors


def create_admin_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.gateway = gateway
    app.include_router(health.router)
    app.include_router(metrics.router(may_know_model=_everybody))
    app.include_router(replicas.router)
    app.add_exception_handler(RequestError, _refuse)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_middleware(AccessLog)
    return app


async def _everybody() -> bool:
    return True


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        return errors.error_response(error)
    assert isinstance(error, HTTPException)
    return errors.no_such_route(error.status_code, error.detail)
