"""`/metrics` for Prometheus. It asks for no key, since few scrapers carry one."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends
from starlette.responses import Response

from gateway.observability.exposition import CONTENT_TYPE
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.routes.tgi.errors import TgiRoute


def router(may_know_model: Callable[..., Awaitable[bool]]) -> APIRouter:
    """The route; `may_know_model` is the dependency that says whether series may name the model to this client."""
    scrapes = APIRouter(route_class=TgiRoute, include_in_schema=False)

    @scrapes.get("/metrics")
    async def metrics(gateway: Gateway = Depends(gateway_of), named: bool = Depends(may_know_model)) -> Response:
        return Response(gateway.metrics.render(named=named), headers={"content-type": CONTENT_TYPE})

    return scrapes
