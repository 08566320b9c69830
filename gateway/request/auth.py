"""Who may call: the key, as a dependency of every router but those of probes and metrics.

Access is never decided by path or URL, which proxies and Host headers can change.
"""

from collections.abc import Sequence
from typing import cast

from fastapi import Depends, Request

from gateway.errors import Kind, RequestError
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.request.keys import Caller


async def require_key(request: Request, gateway: Gateway = Depends(gateway_of)) -> None:
    """Raises RequestError of kind UNAUTHORIZED if keys are set and the request does not carry exactly one of them."""
    headers = request.headers
    request.state.caller = known_caller(gateway, headers.getlist("authorization"), headers.getlist("x-api-key"))


def known_caller(gateway: Gateway, authorizations: Sequence[str], api_keys: Sequence[str]) -> Caller:
    """The caller who sends these headers. Raises as `require_key`."""
    caller = gateway.keys.caller(authorizations, api_keys)
    if caller is None:
        sent = "send `Authorization: Bearer <key>`, or `x-api-key: <key>` as Anthropic's clients do"
        raise RequestError(Kind.UNAUTHORIZED, f"the API key is missing or wrong: {sent}")
    return caller


async def may_know(request: Request, gateway: Gateway = Depends(gateway_of)) -> bool:
    """Whether the client of a route without a key may learn which model is served: it sends a key, or no key is set.

    Raises as `require_key` if the client sends a wrong key.
    """
    if not set(request.headers.keys()) & {"authorization", "x-api-key"}:
        return gateway.keys.caller([]) is not None
    await require_key(request, gateway)
    return True


def caller_of(request: Request) -> Caller:
    """The caller that `require_key` let in."""
    return cast(Caller, request.state.caller)
