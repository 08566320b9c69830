"""One gateway while its stream is open: its requests, and the events that wait to be sent to it.

A gateway that does not read costs bounded memory. Unsent events are merged per request, so they are never more than the
output of the gateway's own requests, which `max_new_tokens` bounds. A message that lists many alternatives, or carries
many logits, is closed and followed by another one, because gRPC limits the size of a message.
"""

import asyncio
from collections import deque

from jaxengine.request.event import Event
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import ALTERNATIVE_BYTES, MAX_LISTED_ALTERNATIVES
from jaxengine.service import codec
from jaxengine.service.cached_pages import UntoldPages


class GatewaySession:
    """The engine's end of a session.

    Args:
        pages: from which prompts can start, as far as the gateway must be told; None where there never are any.
    """

    def __init__(self, pages: UntoldPages | None = None) -> None:
        self.pages = pages
        self.engine_ids: dict[int, int] = {}  # the gateway's id of a running request → the engine's
        self._message = pb.StepEvents()  # collects events until it is sent
        self._events: dict[int, pb.RequestEvent] = {}  # the events in it, by the gateway's request id
        self._alternatives = 0  # listed in it, or what takes as many bytes
        self._full: deque[pb.StepEvents] = deque()  # messages to be sent before it
        self._closed = False
        self._wake = asyncio.Event()

    def put(self, request_id: int, event: Event) -> None:
        """Add `event` to the next message, merged with what that holds of the request already."""
        if self._alternatives >= MAX_LISTED_ALTERNATIVES:
            self._full.append(self._take_message())
        message = self._events.get(request_id)
        if message is None:
            message = self._events[request_id] = self._message.events.add(id=request_id)
        codec.add_event(message, event)
        told = (event.tokens, event.prompt, *(beam.tokens for beam in event.beams))
        self._alternatives += sum(len(token.top) for tokens in told for token in tokens)
        self._alternatives += len(event.logits) // ALTERNATIVE_BYTES

    def flush(self, step: int, stats: pb.Stats) -> None:
        """Let the writer send the events put so far, with the number and the statistics of their step."""
        self._message.step = step
        self._message.stats.CopyFrom(stats)
        self.wake()

    def announce(self, adapters: pb.AdapterList) -> None:
        """Let the writer send the adapters that are served."""
        self._message.adapters.CopyFrom(adapters)
        self._message.adapters.SetInParent()  # an empty list is sent too
        self.wake()

    def wake(self) -> None:
        """Let the writer send a message now, be it empty."""
        self._wake.set()

    def close(self) -> None:
        """End the stream once all events put so far are sent."""
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
            if not self._events:
                return None
            self.wake()
        return self._take_message()

    def _take_message(self) -> pb.StepEvents:
        """The collected message. The new one has no stats: a step is reported once."""
        message, self._message = self._message, pb.StepEvents(step=self._message.step)
        if self.pages is not None:
            self.pages.tell(message)
        self._events, self._alternatives = {}, 0
        return message
