"""The replicas of this server, for its operator: which there are, and routes that drain, open and restart them.

They are on the admin listener alone. What changes something asks for the API key if one is set; without one it is for
programs of this machine, and never for a page in a browser.
"""

import dataclasses
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Request
from starlette.responses import JSONResponse, Response

from gateway.engine.interface import Operations
from gateway.request.auth import require_key
from gateway.request.gateway_state import Gateway, gateway_of

router = APIRouter(prefix="/admin/replicas")
FORWARDED = frozenset({"forwarded", "x-forwarded-for", "x-real-ip"})  # headers by which a proxy names its client


async def operations(request: Request, gateway: Gateway = Depends(gateway_of)) -> Operations:
    """What the client may do.

    Raises:
        RequestError: the key is missing or wrong.
        HTTPException: 403 where no key is set and the client is not a program of this machine; 503 where the server is
            about to stop.
    """
    await require_key(request, gateway)
    if "origin" in request.headers:
        raise HTTPException(403, "not for pages in a browser")
    if not gateway.options.keys and not _is_of_this_machine(request):
        raise HTTPException(403, "only programs of this machine may do so, as no API key is set")
    if gateway.operations is None or gateway.draining:
        raise HTTPException(503, "the server is not running")
    return gateway.operations


async def existing(index: Annotated[str, Path()], gateway: Gateway = Depends(gateway_of)) -> int:
    """Raises HTTPException, 404, if there is no such replica."""
    names = [str(each.index) for each in gateway.engine.replicas]
    if index not in names:  # not as a number: Python refuses to read one of 5,000 digits
        raise HTTPException(404, f"there is no replica {index[:20]}: the last is {names[-1]}")
    return int(index)


@contextmanager
def refused() -> Iterator[None]:
    """What cannot be done is a 409."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(409, str(error)) from None


Allowed = Annotated[Operations, Depends(operations)]
Index = Annotated[int, Depends(existing)]


@router.get("")
async def replicas(gateway: Gateway = Depends(gateway_of)) -> Response:
    return _told(gateway, 200)


@router.post("/restart")
async def restart_all(allowed: Allowed, gateway: Gateway = Depends(gateway_of)) -> Response:
    with refused():
        allowed.restart_all()
    return _told(gateway, 202)


@router.post("/{index}/drain")
async def drain(allowed: Allowed, index: Index, gateway: Gateway = Depends(gateway_of)) -> Response:
    allowed.drain(index)
    return _told(gateway, 202)


@router.post("/{index}/undrain")
async def undrain(allowed: Allowed, index: Index, gateway: Gateway = Depends(gateway_of)) -> Response:
    allowed.undrain(index)
    return _told(gateway, 202)


@router.post("/{index}/restart")
async def restart(allowed: Allowed, index: Index, gateway: Gateway = Depends(gateway_of)) -> Response:
    with refused():
        allowed.restart(index)
    return _told(gateway, 202)


def _told(gateway: Gateway, status: int) -> Response:
    """The replicas as they are now: what was asked for has only begun."""
    return JSONResponse({"replicas": [dataclasses.asdict(each) for each in gateway.engine.replicas]}, status)


def _is_of_this_machine(request: Request) -> bool:
    """Whether the client is not one elsewhere that a proxy speaks for. The listener leaves its address as it is."""
    if request.client is None or not FORWARDED.isdisjoint(request.headers.keys()):
        return False
    with suppress(ValueError):
        address = ipaddress.ip_address(request.client.host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return False
