"""Who may call: the bearer key, as a dependency of every router that is not public.

Never decided by path or URL, which proxies and Host headers can bend.
"""

import hashlib
import hmac

from fastapi import Depends, Request

from gateway.errors import Kind, RequestError
from gateway.state import Gateway, gateway_of


def require_key(request: Request, gateway: Gateway = Depends(gateway_of)) -> None:
    """Raises RequestError of kind UNAUTHORIZED unless no key is set, or the one Authorization header carries it."""
    if gateway.options.api_key is None:
        return
    offered = request.headers.getlist("authorization")
    if len(offered) != 1 or not _matches(offered[0], gateway.options.api_key):
        raise RequestError(Kind.UNAUTHORIZED, "the API key is missing or wrong: send `Authorization: Bearer <key>`")


def _matches(header: str, key: str) -> bool:
    scheme, _, credential = header.partition(" ")
    same = hmac.compare_digest(_digest(credential.strip()), _digest(key))
    return same and scheme.lower() == "bearer"


def _digest(text: str) -> bytes:
    """Of equal length whatever the text, so that comparing tells nothing about the key's."""
    return hashlib.sha256(text.encode()).digest()
