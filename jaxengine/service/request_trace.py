"""The spans of a request inside the engine, named as TGI does: `infer`, and in it `queued`, `prefill` and `decode`."""

import time

from jaxengine.request.sequence import Event
from jaxengine.telemetry.tracing import Tracing


class RequestTrace:
    """Begins with the request's arrival; `traceparent` is the gateway's span."""

    def __init__(self, tracing: Tracing, traceparent: str) -> None:
        self._tracing = tracing
        self._infer = tracing.start("infer", traceparent)
        self._arrived = self._first_token = time.perf_counter()

    def note(self, event: Event) -> None:
        """What the engine reports of it, until its last event."""
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
