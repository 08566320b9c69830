"""Log lines of every process of a server, as text or as JSON with TGI's fields, and the line that says why it ends."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

logger = logging.getLogger("jaxengine")

USAGE = 2  # exit code for a wrong option, as of argparse; the other exit codes are those of sysexits.h, `os.EX_…`
OURS = ("gateway", "jaxengine", "convert")  # the loggers above all of ours
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def configure(json_output: bool, level: str = "info", **fields: Any) -> None:
    """Write our own lines from `level` on, and those of libraries from WARNING on: JAX logs every missing back end.

    Every line carries `fields`, which tell processes of one kind apart.
    """
    handler = LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(fields) if json_output else TextFormatter(fields))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.WARNING))
    logging.captureWarnings(True)
    for ours in OURS:
        logging.getLogger(ours).setLevel(LEVELS[level])


def fail(message: str, code: int) -> int:
    """Say in one line why the process cannot run. Returns `code`, with which it should exit."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logger.critical(message)
    else:
        print(f"{wipe(sys.stderr)}error: {message}", file=sys.stderr, flush=True)
    return code


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Lines of their own on a terminal too, where this or another process may be drawing a bar: it is wiped out first,
    and drawn again when it moves.
    """

    def format(self, record: logging.LogRecord) -> str:
        return wipe(self.stream) + super().format(record)  # where logging heeds errors: the stream may be closed


def wipe(stream: TextIO) -> str:
    """What clears the line that a terminal is at: back to its beginning, and erased to its end."""
    return "\r\x1b[K" if stream.isatty() else ""


class Formatter(logging.Formatter):
    """Lines with fields: those of every line, and those of one."""

    def __init__(self, common: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._common = common or {}

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {**self._common, **getattr(record, "fields", {})}


class TextFormatter(Formatter):
    """`2026-01-31T12:00:00.123456Z INFO name: message key=value …`, on one line except for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_escape(str(value))}" for key, value in _flat(self.fields(record)).items())
        line = (
            f"{_timestamp(record)} {record.levelname} {record.name}: {_escape(record.getMessage())} {fields}".rstrip()
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(Formatter):
    """One object per line, with TGI's keys: timestamp, level, message, target, filename, line_number.

    A line that belongs to a span also has `span`, and `spans` with this span alone.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": _timestamp(record),
            "level": record.levelname,
            "message": record.getMessage(),
            "target": record.name,
            "filename": record.filename,
            "line_number": record.lineno,
            **self.fields(record),
        }
        if "span" in line:
            line["spans"] = [line["span"]]
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with those of a span moved up beside them."""
    span = {key: value for key, value in fields.get("span", {}).items() if key != "name"}
    return {key: value for key, value in fields.items() if key != "span"} | span


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.created % 1 * 1e6):06d}Z"


def _escape(text: str) -> str:
    """`text` with control characters escaped, so that a client cannot forge a log line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
