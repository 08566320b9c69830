"""The admin listener's application: probes and metrics on a port of their own (`--admin-port`).

It answers however busy the main port is, asks for no key and names the model: whoever reaches it is an operator.
"""

from fastapi import FastAPI

from gateway.observability.access_log import AccessLog
from gateway.request.gateway_state import Gateway
from gateway.routes import health, metrics


def create_admin_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.gateway = gateway
    app.include_router(health.router)
    app.include_router(metrics.router(may_know_model=_everybody))
    app.add_middleware(AccessLog)
    return app


async def _everybody() -> bool:
    return True
