"""Probes. Live: this process answers, and the engine runs or can be started again. Ready: a request that is sent now
is served, whichever HTTP process takes it.

No probe calls the engine: readiness follows from the last heartbeat of its step loop, so that an overloaded server
still answers probes at once.
"""

from typing import Any

from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse, Response

from gateway.request.gateway_state import Gateway, gateway_of

NOT_HEALTHY: dict[int | str, dict[str, Any]] = {503: {"description": "Not healthy, with advice when to ask again"}}
router = APIRouter(tags=["health"], default_response_class=Response, responses=NOT_HEALTHY)
UNHEALTHY = {"error": "unhealthy", "error_type": "healthcheck"}


@router.get("/health/live")
async def live(gateway: Gateway = Depends(gateway_of)) -> Response:
    return Response() if gateway.alive else JSONResponse(UNHEALTHY, 503)


@router.get("/")
@router.get("/health")
@router.get("/ping")
@router.post("/ping")
@router.get("/health/ready")
async def ready(gateway: Gateway = Depends(gateway_of)) -> Response:
    if gateway.all_ready:
        return Response()
    headers = {"retry-after": str(gateway.engine.retry_after)}
    if gateway.draining:
        headers["connection"] = "close"
    return JSONResponse(UNHEALTHY, 503, headers)
