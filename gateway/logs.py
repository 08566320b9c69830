"""Log lines: one per request when it is over, as text or as JSON. Never a prompt, an answer, a query string or a key.

Probes and scrapes are logged at DEBUG, or they would be most of the log.
"""

import json
import logging
import sys
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("gateway.access")
QUIET_PATHS = ("/health", "/ping", "/metrics", "/health/live", "/health/ready")
NOTES = "textgen.notes"  # in the ASGI scope: what a route adds to its request's line
CLIENT_CLOSED_REQUEST = 499  # no answer was begun: the client left first


def configure(json_output: bool, level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_output else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("uvicorn", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO name: message key=value …`, always on one line but for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_escape(str(value))}" for key, value in _flat(_fields(record)).items())
        line = (
            f"{_timestamp(record)} {record.levelname} {record.name}: {_escape(record.getMessage())} {fields}".rstrip()
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object per line, with TGI's keys: timestamp, level, message, target, filename, line_number, and span."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": _timestamp(record),
            "level": record.levelname,
            "message": record.getMessage(),
            "target": record.name,
            "filename": record.filename,
            "line_number": record.lineno,
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """A span's fields beside the others."""
    span = {key: value for key, value in fields.get("span", {}).items() if key != "name"}
    return {key: value for key, value in fields.items() if key != "span"} | span


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _escape(text: str) -> str:
    """Without control characters: nobody forges a line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class AccessLog:
    """ASGI: one line when a response is over, with its status, duration and bytes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        began = time.perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        finally:
            answer.log(scope, time.perf_counter() - began)


class _Answer:
    """What went out, as far as the log wants to know."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = CLIENT_CLOSED_REQUEST
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

    def log(self, scope: Scope, seconds: float) -> None:
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
        level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
        if notes := scope.get(NOTES):
            fields["span"] = {"name": f"{scope['method']} {scope['path'][:200]}", **notes}
        logger.log(level, "answered" if self._complete else "cut", extra={"fields": fields})


def _header(message: Message, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in message["headers"] if key.lower() == name), None)
