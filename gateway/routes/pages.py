"""The pages for browsers, and their files. They hold no data, so they ask for no key: what they call does."""

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from gateway.request.gateway_state import Gateway, gateway_of
from gateway.routes import health
from gateway.web.site import FOLDER, HEADERS, WebFile, site

router = APIRouter(include_in_schema=False, default_response_class=Response)
FOR_EVER = "public, max-age=31536000, immutable"
ASKED_EACH_TIME = "no-cache"


@router.get("/")
async def root(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The playground for a browser; probes and clients, which accept anything or JSON, get what `/health` says."""
    if "text/html" in request.headers.get("accept", ""):
        return _to_playground(gateway.options.root_path)
    if gateway.options.admin_exclusive:  # the probes are on the other port
        raise HTTPException(405, headers={"allow": "POST"})
    return await health.ready(gateway)


@router.get("/playground")
async def playground(request: Request) -> Response:
    return _sent(request, site().pages["playground"], ASKED_EACH_TIME)


@router.get("/dashboard")
async def dashboard(request: Request) -> Response:
    return _sent(request, site().pages["dashboard"], ASKED_EACH_TIME)


@router.get(f"/{FOLDER}/{{version}}/{{path:path}}")
async def file(request: Request, version: str, path: str) -> Response:
    """A file of the pages. One of another version than this server's is not to be kept: servers may be exchanged."""
    found = site().files.get(path)
    if found is None:
        raise HTTPException(404)
    return _sent(request, found, FOR_EVER if version == site().version else "no-store")


def _to_playground(root_path: str | None) -> Response:
    """A redirect by a path alone: where it goes is not for the Host header to say."""
    headers = {"vary": "accept", "cache-control": "no-store", "referrer-policy": "no-referrer"}
    return RedirectResponse(f"{root_path}/playground" if root_path else "playground", 307, headers)


def _sent(request: Request, found: WebFile, kept: str) -> Response:
    headers = {**HEADERS, "cache-control": kept, "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, headers={**headers, "content-encoding": "gzip"}, media_type=found.media_type)
    return Response(found.content, headers=headers, media_type=found.media_type)
