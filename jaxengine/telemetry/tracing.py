"""Traces: W3C context from the client through the gateway to the engine, and spans to an OTLP collector if one is set.

Spans are queued (at most 2,048, the rest are dropped) and sent by a thread of OpenTelemetry, never by a thread that
serves requests. Without an endpoint nothing is recorded and OpenTelemetry is not imported, but a client's context is
still passed on.
"""

import re
import threading
import time
from typing import Any

CLOSE_SECONDS = 2.0  # to send queued spans when the process ends, even if the collector hangs
EXPORT_MILLISECONDS = 2000
MAX_ATTRIBUTE = 256  # characters of an attribute or an error
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class TracingUnavailable(Exception):
    """Spans were asked for, but OpenTelemetry is not installed."""


def valid_traceparent(text: str) -> str:
    """`text` if it is a `traceparent` of version 00 (W3C Trace Context, §3.2), else ""."""
    return text if _TRACEPARENT.fullmatch(text) else ""


class Span:
    """One piece of work. `traceparent` is passed on to the work it causes elsewhere."""

    def __init__(self, traceparent: str, recording: Any = None) -> None:
        self.traceparent = traceparent
        self._recording = recording

    def set(self, **attributes: str | int | float) -> None:
        if self._recording is not None:
            for name, value in attributes.items():
                self._recording.set_attribute(name, value[:MAX_ATTRIBUTE] if isinstance(value, str) else value)

    def end(self, error: str = "", *, ago: float = 0.0) -> None:
        """End the span `ago` seconds before now, with `error` unless that is empty."""
        if self._recording is None:
            return
        if error:
            from opentelemetry.trace import StatusCode

            self._recording.set_status(StatusCode.ERROR, error[:MAX_ATTRIBUTE])
        self._recording.end(time.time_ns() - int(ago * 1e9))


class Tracing:
    """Where spans are sent. Without a provider they are not recorded."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("textgen")

    @classmethod
    def to(cls, endpoint: str | None, service: str) -> "Tracing":
        """Tracing to an OTLP/gRPC collector, or without an `endpoint` to nowhere. Raises TracingUnavailable."""
        if endpoint is None:
            return cls()
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise TracingUnavailable("--otlp-endpoint needs OpenTelemetry: pip install '.[otel]'") from error
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=2)
        provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_MILLISECONDS))
        return cls(provider)

    def start(self, name: str, traceparent: str = "", *, ago: float = 0.0, inner: bool = False) -> Span:
        """A span that began `ago` seconds before now; its parent is `traceparent`, if that is valid.

        inner: its kind is INTERNAL; otherwise SERVER, for a call from outside the process.
        """
        parent = valid_traceparent(traceparent)
        if self._tracer is None:
            return Span(parent)
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({"traceparent": parent} if parent else {})
        kind = SpanKind.INTERNAL if inner else SpanKind.SERVER
        span = self._tracer.start_span(name, context=context, kind=kind, start_time=time.time_ns() - int(ago * 1e9))
        own = span.get_span_context()
        return Span(f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}", span)

    def past(self, name: str, traceparent: str, began: float, ended: float) -> None:
        """Record an inner span that is over. `began` and `ended` are times of `time.perf_counter`."""
        if self._tracer is not None:
            now = time.perf_counter()
            self.start(name, traceparent, ago=now - began, inner=True).end(ago=now - ended)

    def close(self) -> None:
        """Send the queued spans, for at most `CLOSE_SECONDS`."""
        if self._provider is not None:
            closing = threading.Thread(target=self._provider.shutdown, daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS)
