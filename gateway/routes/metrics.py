"""`/metrics` for Prometheus. It asks for no key, since few scrapers carry one, but names the model only to those who
have it.
"""

from fastapi import APIRouter, Depends
from starlette.responses import Response

from gateway.observability.exposition import CONTENT_TYPE
from gateway.request.auth import may_know
from gateway.request.state import Gateway, gateway_of
from gateway.routes.tgi.errors import TgiRoute

router = APIRouter(route_class=TgiRoute, include_in_schema=False)


@router.get("/metrics")
async def metrics(gateway: Gateway = Depends(gateway_of), named: bool = Depends(may_know)) -> Response:
    return Response(gateway.metrics.render(named=named), headers={"content-type": CONTENT_TYPE})
