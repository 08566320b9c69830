"""The admin listener's application: probes and metrics on a port of their own (`--admin-port`).

It answers whatever the main port is busy with, asks for no key and names the model: who reaches it is an operator.
"""

from fastapi import APIRouter, Depends, FastAPI
from starlette.responses import Response

from gateway.observability.access_log import AccessLog
from gateway.observability.exposition import CONTENT_TYPE
from gateway.request.state import Gateway, gateway_of
from gateway.routes import health

scrapes = APIRouter()


@scrapes.get("/metrics")
async def metrics(gateway: Gateway = Depends(gateway_of)) -> Response:
    return Response(gateway.metrics.render(named=True), headers={"content-type": CONTENT_TYPE})


def create_admin_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.gateway = gateway
    app.include_router(health.router)
    app.include_router(scrapes)
    app.add_middleware(AccessLog)
    return app
