"""Deadlines of requests, kept by the event loop, because a step may last longer than a request may take or wait.

Between steps the engine itself ends the requests whose deadline has passed. These timers fire during a step.
"""

import asyncio
from collections.abc import Callable

from jaxengine.request.event import FinishReason
from jaxengine.request.sequence import Request


class Deadlines:
    """Timers of the running requests. Lives on the event loop it is created in.

    Args:
        is_queued: whether no step has scheduled a request yet.
        expire: called with the id of a request whose deadline has passed, and the finish reason.
    """

    def __init__(self, is_queued: Callable[[int], bool], expire: Callable[[int, FinishReason], None]) -> None:
        self._is_queued, self._expire = is_queued, expire
        self._timers: dict[int, list[asyncio.TimerHandle]] = {}

    def watch(self, request: Request) -> None:
        """Start the timers of `request`; they run until `forget`."""
        later = asyncio.get_running_loop().call_later
        timers = self._timers[request.id] = []
        if request.timeout is not None:
            timers.append(later(request.timeout, self._expire, request.id, FinishReason.DEADLINE))
        if request.queue_timeout is not None:
            timers.append(later(request.queue_timeout, self._expire_if_queued, request.id))

    def forget(self, request_id: int) -> None:
        """Stop the timers of a request; one that was never watched is ignored."""
        for timer in self._timers.pop(request_id, ()):
            timer.cancel()

    def _expire_if_queued(self, request_id: int) -> None:
        if self._is_queued(request_id):
            self._expire(request_id, FinishReason.QUEUE_TIMEOUT)
