"""The spans of a request inside the engine, with TGI's names: `infer`, and inside it `queued`, `prefill`, `decode`."""

import time

from jaxengine.request.event import Event
from jaxengine.telemetry.tracing import Tracing


class RequestTrace:
    """The spans of one request. `infer` begins when this is created; `traceparent` is the gateway's span."""

    def __init__(self, tracing: Tracing, traceparent: str) -> None:
        self._tracing = tracing
        self._infer = tracing.start("infer", traceparent)
        self._arrived = self._first_token = time.perf_counter()

    def note(self, event: Event) -> None:
        """Record an event of the request, until its last one."""
        if event.first:
            self._first_token = time.perf_counter()
            scheduled = min(self._arrived + event.queue_seconds, self._first_token)
            self._inner("queued", self._arrived, scheduled)
            self._inner("prefill", scheduled, self._first_token)
            self._infer.set(queue_time=event.queue_seconds, cached_tokens=event.cached_tokens)
        if event.finish:
            if self._first_token > self._arrived:
                self._inner("decode", self._first_token, time.perf_counter())
            self._infer.set(finish=event.finish.name)

    def end(self) -> None:
        self._infer.end()

    def _inner(self, name: str, began: float, ended: float) -> None:
        self._tracing.past(name, self._infer.traceparent, began, ended)
