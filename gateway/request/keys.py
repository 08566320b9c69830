"""API keys: which are valid, and which caller a valid key stands for.

Keys are kept and compared as digests, all of them each time, so that neither the time nor a memory dump reveals a key.
With more than one key, each caller has a private prefix cache: a shared one would reveal, by the time to the first
token, what other callers have asked. The cache's salt is made with a secret of this boot, so no client can guess the
salt of another.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The holders of one key, or everybody where no key is set."""

    number: int = 0  # of the key, in the order given
    salt: bytes = b""  # callers with the same salt share prefix-cache pages


ANYBODY = Caller()


class Keys:
    """The keys of one boot.

    Args:
        keys: as clients send them, without duplicates; none lets everybody in.
        share_cache: whether callers with different keys share the prefix cache.
        secret: of this boot, the same in all processes of the server; random if not given.
    """

    def __init__(self, keys: Sequence[str], *, share_cache: bool = False, secret: bytes = b"") -> None:
        self._digests = [_digest(key) for key in keys]
        private = len(keys) > 1 and not share_cache
        boot = secret or secrets.token_bytes(32)
        salts = [hmac.digest(boot, each, "sha256")[:16] if private else b"" for each in self._digests]
        self._callers = [Caller(number, salt) for number, salt in enumerate(salts)]

    def caller(self, authorizations: Sequence[str], api_keys: Sequence[str] = ()) -> Caller | None:
        """The caller who sends these headers, `Authorization` and `x-api-key`: None unless they are one `Bearer` with a
        valid key, or, with no `Authorization` at all, one `x-api-key` that is valid.

        Beside a bearer key an `x-api-key` says nothing: gateways in front of a server take keys of their own in it, and
        pass them on.
        """
        if not self._digests:
            return ANYBODY
        authorizations = authorizations or [f"Bearer {key}" for key in api_keys]
        if len(authorizations) != 1:
            return None
        scheme, _, credential = authorizations[0].partition(" ")
        offered = _digest(credential.strip())
        found = [
            caller
            for digest, caller in zip(self._digests, self._callers, strict=True)
            if hmac.compare_digest(digest, offered)
        ]
        return found[0] if found and scheme.lower() == "bearer" else None


def _digest(text: str) -> bytes:
    """Digests have one length, so comparing them reveals nothing about the key's length."""
    return hashlib.sha256(text.encode()).digest()
