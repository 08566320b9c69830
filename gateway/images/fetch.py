"""Pictures fetched from other machines, for a client who names the URL and must not reach anything else by it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.images.locator import Remote


@dataclass(frozen=True)
class FetchLimits:
    """seconds: in all, redirects and names looked up included. size: bytes of the file."""

    seconds: float
    size: int


class Fetcher:
    """Fetches pictures from the hosts that `domains` allow; without any, it refuses every URL."""

    def __init__(self, domains: Sequence[str], limits: FetchLimits) -> None:
        raise NotImplementedError

    async def fetch(self, remote: Remote) -> bytes:
        """The file. Raises RequestError INVALID: not allowed, not found, too large, too slow."""
        raise NotImplementedError
