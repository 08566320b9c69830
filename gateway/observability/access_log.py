"""The access log: one line for each request when it is over, without prompt, answer, query string or key.

Probes and scrapes are logged at DEBUG: at INFO they would be most of the log.
"""

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import CLIENT_CLOSED_REQUEST

logger = logging.getLogger("gateway.access")
PROBES = ("/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready")
QUIET_PATHS = ("/", "/health", "/ping", "/metrics", *PROBES)
LOG_FIELDS = "textgen.log_fields"  # in the ASGI scope: what a route adds to its request's line


class AccessLog:
    """ASGI: log one line when a response is over, with its status, seconds and bytes; at DEBUG for `quiet` paths."""

    def __init__(self, app: ASGIApp, quiet: Collection[str] = QUIET_PATHS) -> None:
        self._app = app
        self._quiet = quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        began = time.perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        finally:
            quiet = scope["path"] in self._quiet and (scope["method"] != "POST" or scope["path"] == "/ping")
            answer.log(scope, time.perf_counter() - began, logging.DEBUG if quiet else logging.INFO)


class _Answer:
    """What the log line says of one response, read from its messages."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = CLIENT_CLOSED_REQUEST  # until an answer begins
        self._bytes = 0
        self._complete = False
        self._request_id: str | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._request_id = _header(message, b"x-request-id")
        elif message["type"] == "http.response.body":
            self._bytes += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        await self._send(message)

    def log(self, scope: Scope, seconds: float, level: int) -> None:
        fields: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": self._status,
            "seconds": round(seconds, 4),
            "bytes": self._bytes,
            "client": (scope.get("client") or ("-",))[0],
        }
        if self._request_id is not None:
            fields["request_id"] = self._request_id
        write_line(level, fields, scope.get(LOG_FIELDS), _span_name(scope["path"]), complete=self._complete)


def write_line(
    level: int, fields: dict[str, Any], span: Mapping[str, str] | None, name: str, *, complete: bool
) -> None:
    """Write a line with `fields`, and with the `span` that a request left under its route's `name`, if it did."""
    if span:
        fields["span"] = {"name": name, **span}
    logger.log(level, "answered" if complete else "cut", extra={"fields": fields})


def _span_name(path: str) -> str:
    """TGI's name for a route: `generate`, `generate_stream`, `completions`, `chat_completions`."""
    return path[:200].removeprefix("/v1").strip("/").replace("/", "_") or "generate"


def _header(message: Message, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in message["headers"] if key.lower() == name), None)
