"""Between the engine's stream, which brings events of all requests, and the reader of one request."""

import asyncio

from jaxengine.rpc import engine_pb2 as pb


class EventBuffer:
    """The events of one request that its reader has not taken yet, merged into one.

    Its size is bounded by the request's own output, and that by `max_new_tokens`.
    """

    def __init__(self) -> None:
        self._event: pb.RequestEvent | None = None
        self._failure: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, event: pb.RequestEvent) -> None:
        """Add an event, or merge it into the one that waits."""
        if self._event is None:
            self._event = event
        else:
            self._event.MergeFrom(event)
        self._arrived.set()

    def fail(self, failure: Exception) -> None:
        """Raise `failure` in the reader once it has taken what came before. The first failure counts."""
        self._failure = self._failure or failure
        self._arrived.set()

    async def take(self) -> pb.RequestEvent:
        """Wait for an event and remove it. Raises what `fail` was given."""
        await self._arrived.wait()
        self._arrived.clear()
        event, self._event = self._event, None
        if event is not None:
            if self._failure is not None:
                self._arrived.set()
            return event
        assert self._failure is not None, "woken with neither event nor failure"
        raise self._failure
