"""How many bytes requests may hold of their images, all together: a picture of a megabyte becomes patches of fifty."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Kind, RequestError

RETRY_SECONDS = 1  # advised to a client: so soon other requests are answered


class ImageMemory:
    """That of one process. Not thread-safe: it belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0  # bytes

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """`size` bytes for the body of the `with`. Where no others are held, any number is let in.

        Raises RequestError OVERLOADED: they are too many beside those that are held.
        """
        if self.held and self.held + size > self._limit:
            message = "images of other requests take all memory that there is for them (--max-image-memory)"
            raise RequestError(Kind.OVERLOADED, message, retry_after=RETRY_SECONDS)
        self.held += size
        try:
            yield
        finally:
            self.held -= size
