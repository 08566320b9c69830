"""From the engine's stream to whoever reads one request."""

import asyncio

from jaxengine.rpc import engine_pb2 as pb


class EventBuffer:
    """Events of one request on their way to its reader, merged while the reader is slow.

    Memory is bounded by the request's own output, which `max_new_tokens` bounds.
    """

    def __init__(self) -> None:
        self._event: pb.RequestEvent | None = None
        self._failure: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, event: pb.RequestEvent) -> None:
        if self._event is None:
            self._event = event
        else:
            self._event.MergeFrom(event)
        self._arrived.set()

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        self._arrived.set()

    async def take(self) -> pb.RequestEvent:
        await self._arrived.wait()
        self._arrived.clear()
        event, self._event = self._event, None
        if event is not None:
            if self._failure is not None:
                self._arrived.set()
            return event
        assert self._failure is not None, "woken with neither event nor failure"
        raise self._failure
