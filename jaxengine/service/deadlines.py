"""Deadlines of requests, kept by the event loop: a step may last longer than a request may take or wait.

Between steps the engine ends what is late by itself; here is what happens to it meanwhile.
"""

import asyncio
from collections.abc import Callable

from jaxengine.request.sequence import FinishReason, Request


class Deadlines:
    """Timers of the requests that run. Lives on the event loop it is created in.

    Args:
        is_queued: whether a request has not been taken up yet.
        expire: told of a request whose deadline has passed, and of which.
    """

    def __init__(self, is_queued: Callable[[int], bool], expire: Callable[[int, FinishReason], None]) -> None:
        self._is_queued, self._expire = is_queued, expire
        self._timers: dict[int, list[asyncio.TimerHandle]] = {}

    def watch(self, request: Request) -> None:
        """From now on, until `forget`."""
        later = asyncio.get_running_loop().call_later
        timers = self._timers[request.id] = []
        if request.timeout is not None:
            timers.append(later(request.timeout, self._expire, request.id, FinishReason.DEADLINE))
        if request.queue_timeout is not None:
            timers.append(later(request.queue_timeout, self._waited, request.id))

    def forget(self, request_id: int) -> None:
        """It ended, or was never watched."""
        for timer in self._timers.pop(request_id, ()):
            timer.cancel()

    def _waited(self, request_id: int) -> None:
        if self._is_queued(request_id):
            self._expire(request_id, FinishReason.QUEUE_TIMEOUT)
