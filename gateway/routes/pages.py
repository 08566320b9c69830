"""The pages for browsers, and their files. They hold no data, so they ask for no key: what they call does."""

import asyncio
from collections.abc import Mapping

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from gateway.request.gateway_state import Gateway, gateway_of
from gateway.routes import health
from gateway.web.site import FOLDER, HEADERS, PLAYGROUND_HEADERS, Site, WebFile, site

router = APIRouter(include_in_schema=False, default_response_class=Response)
FOR_EVER = "public, max-age=31536000, immutable"
ASKED_EACH_TIME = "no-cache"


@router.get("/")
async def root(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The playground for a browser; probes and clients, which accept anything or JSON, get what `/health` says."""
    if accepts(request.headers.get("accept", ""), "text/html"):
        return _to_playground(gateway.options.root_path)
    if gateway.options.admin_exclusive:  # the probes are on the other port
        raise HTTPException(405, headers={"allow": "POST"})
    answer = await health.ready(gateway)
    answer.headers["vary"] = "accept"
    return answer


@router.get("/playground")
async def playground(request: Request) -> Response:
    return _sent(request, (await _site()).pages["playground"], ASKED_EACH_TIME, PLAYGROUND_HEADERS)


@router.get("/dashboard")
async def dashboard(request: Request) -> Response:
    return _sent(request, (await _site()).pages["dashboard"], ASKED_EACH_TIME)


@router.get(f"/{FOLDER}/{{version}}/{{path:path}}")
async def file(request: Request, version: str, path: str) -> Response:
    """A file of the pages. One of another version than this server's is not to be kept: servers may be exchanged."""
    found = (await _site()).files.get(path)
    if found is None:
        raise HTTPException(404)
    return _sent(request, found, FOR_EVER if version == site().version else "no-store")


async def _site() -> Site:
    """Read and packed on a thread: the first time it takes 20 ms, in which streams would stand still."""
    return await asyncio.to_thread(site)


def _to_playground(root_path: str | None) -> Response:
    """A redirect by a path alone: where it goes is not for the Host header to say."""
    headers = {"vary": "accept", "cache-control": "no-store", "referrer-policy": "no-referrer"}
    return RedirectResponse(f"{root_path}/playground" if root_path else "playground", 307, headers)


def accepts(header: str, name: str) -> bool:
    """Whether a list of preferences names `name`, and not to rule it out with a weight of 0 (RFC 9110, 12.4.2)."""
    for entry in header.lower().split(","):
        value, *parameters = (part.strip() for part in entry.split(";"))
        if value == name:
            weights = [each[2:] for each in parameters if each.startswith("q=")]
            return not weights or weights[0].strip("0.") != ""
    return False


def _sent(request: Request, found: WebFile, kept: str, always: Mapping[str, str] = HEADERS) -> Response:
    packed = accepts(request.headers.get("accept-encoding", ""), "gzip")
    tag = f'"{site().version}{"-gzip" if packed else ""}"'
    headers = {**always, "cache-control": kept, "vary": "accept-encoding", "etag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if packed:
        return Response(found.packed, headers={**headers, "content-encoding": "gzip"}, media_type=found.media_type)
    return Response(found.content, headers=headers, media_type=found.media_type)
