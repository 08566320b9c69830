"""Who may call: the bearer key, as a dependency of every router that is not a probe's.

Never decided by path or URL, which proxies and Host headers can bend.
"""

from typing import cast

from fastapi import Depends, Request

from gateway.errors import Kind, RequestError
from gateway.request.keys import Caller
from gateway.request.state import Gateway, gateway_of


async def require_key(request: Request, gateway: Gateway = Depends(gateway_of)) -> None:
    """Raises RequestError of kind UNAUTHORIZED unless no key is set, or the one Authorization header carries one."""
    caller = gateway.keys.caller(request.headers.getlist("authorization"))
    if caller is None:
        raise RequestError(Kind.UNAUTHORIZED, "the API key is missing or wrong: send `Authorization: Bearer <key>`")
    request.state.caller = caller


async def may_know(request: Request, gateway: Gateway = Depends(gateway_of)) -> bool:
    """Whether, on a route that is open, the client may learn what is served: it sends a key, or needs none.

    Raises as `require_key` where it sends a wrong one.
    """
    if not request.headers.getlist("authorization"):
        return gateway.keys.caller([]) is not None
    await require_key(request, gateway)
    return True


def caller_of(request: Request) -> Caller:
    """Who `require_key` let in."""
    return cast(Caller, request.state.caller)
