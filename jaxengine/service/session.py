"""One gateway, while its stream is open: its requests, and what waits to be sent to it.

One that does not read costs bounded memory: what is not sent yet is merged per request, so it holds no more than its
requests' own output, which `max_new_tokens` bounds. A message that lists many alternatives is followed by another one,
or it might be larger than a message can be.
"""

import asyncio
from collections import deque

from jaxengine.request.sequence import Event
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_LISTED
from jaxengine.service import codec


class GatewaySession:
    """The engine's end of a session."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}  # the gateway's id → the engine's
        self._next = pb.StepEvents()
        self._unsent: dict[int, pb.RequestEvent] = {}  # what lies in it, by request
        self._listed = 0  # alternatives in it
        self._full: deque[pb.StepEvents] = deque()  # messages before it
        self._closed = False
        self._wake = asyncio.Event()

    def put(self, request_id: int, event: Event) -> None:
        if self._listed >= MAX_LISTED:
            self._full.append(self._begin_next())
        message = self._unsent.get(request_id)
        if message is None:
            message = self._unsent[request_id] = self._next.events.add(id=request_id)
        codec.add_event(message, event)
        self._listed += sum(len(token.top) for tokens in (event.tokens, event.prompt) for token in tokens)

    def flush(self, step: int, stats: pb.Stats) -> None:
        """Let the writer have what was put since, with the state of the step it belongs to."""
        self._next.step = step
        self._next.stats.CopyFrom(stats)
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """End the stream once what is put has been sent."""
        self._closed = True
        self.wake()

    async def take(self) -> pb.StepEvents | None:
        """The next message to send; None when the session is over."""
        await self._wake.wait()
        self._wake.clear()
        if self._full:
            self.wake()
            return self._full.popleft()
        if self._closed:
            if not self._unsent:
                return None
            self.wake()
        return self._begin_next()

    def _begin_next(self) -> pb.StepEvents:
        """What was put so far; the next message is empty, as a step is reported once."""
        message, self._next = self._next, pb.StepEvents(step=self._next.step)
        self._unsent, self._listed = {}, 0
        return message
