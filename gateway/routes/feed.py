"""`/dashboard/feed`: what the dashboard shows, as server-sent events. It asks for the key, as every route with data.

The fields of a sample and their units are those of `gateway.observability.feed.sample`.
"""

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from gateway.http.rewrites import HEAD_ALONE
from gateway.http.sse import EventStream
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.routes.tgi.errors import TgiRoute, error_event

router = APIRouter(route_class=TgiRoute, include_in_schema=False)


@router.get("/dashboard/feed")
async def feed(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """First `event: history`, the samples of the last ten minutes, then one `event: sample` a second."""
    if request.scope.get(HEAD_ALONE):  # the stream has no end that it could wait for
        return Response(media_type="text/event-stream")
    return await EventStream.begin(request, gateway.feed.watch(), error_event, {})
