"""How many bytes pictures may hold, all together: those of requests, a megabyte of which becomes patches of fifty, and
in what these leave the patches of earlier ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Kind, RequestError
from gateway.images.patch_cache import PatchCache

CACHED = 8  # the part of all memory that earlier pictures may take is 1 / this: 512 MiB, some hundred pictures
RETRY_SECONDS = 1  # advised to a client: so soon other requests are answered


class ImageMemory:
    """That of one process. Not thread-safe: it belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0  # bytes, by requests
        self.earlier = PatchCache(limit // CACHED)

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """`size` bytes for the body of the `with`, for which earlier pictures make room. Where no others are held, any
        number is let in.

        Raises RequestError OVERLOADED: they are too many beside those that are held.
        """
        if self.held and self.held + size > self._limit:
            message = "images of other requests take all memory that there is for them (--max-image-memory)"
            raise RequestError(Kind.OVERLOADED, message, retry_after=RETRY_SECONDS)
        self._hold(size)
        try:
            yield
        finally:
            self._hold(-size)

    def _hold(self, size: int) -> None:
        self.held += size
        self.earlier.resize(min(self._limit // CACHED, self._limit - self.held))
