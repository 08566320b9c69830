"""`RequestInfo`: what a request brings besides its body: its caller, arrival and time, and the trace it belongs to."""

from dataclasses import dataclass, field

from fastapi import Request

from gateway.observability.access_log import LOG_FIELDS
from gateway.request.auth import caller_of
from gateway.request.keys import Caller


@dataclass(frozen=True, slots=True)
class RequestInfo:
    caller: Caller
    arrival: float  # seconds of time.perf_counter
    name: str  # method and route
    traceparent: str = ""
    log_fields: dict[str, str] = field(default_factory=dict)
    timeout: float = 0.0  # seconds that the client gives it; 0 without a limit

    @classmethod
    def of(cls, request: Request, arrival: float) -> "RequestInfo":
        name = f"{request.method} {request.scope['route'].path_format}"
        log_fields: dict[str, str] = request.scope.setdefault(LOG_FIELDS, {})
        return cls(caller_of(request), arrival, name, request.headers.get("traceparent", ""), log_fields)
