"""What the text of an option of the benchmark may be, beyond the launcher's kinds."""

from pathlib import Path
from urllib.parse import urlsplit

from gateway.benchmark.slo import Slo
from gateway.config.values import Value, flag, number, one_of, path, text, whole
from jaxengine.options.option import UsageError

__all__ = [
    "FORMATS",
    "Value",
    "flag",
    "key",
    "number",
    "one_of",
    "output",
    "path",
    "server_url",
    "slo",
    "text",
    "whole",
]

FORMATS = ("md", "json", "html")


def _server_url(text: str) -> str:
    """A server's address without a slash at its end. `/v1` there is dropped: routes are found by their API.

    Raises:
        UsageError: it has a part that may be a secret, so it is not repeated.
        ValueError: it is wrong otherwise.
    """
    if "@" in text or "?" in text or "#" in text:
        raise UsageError("--url must hold no user, query or fragment: a key belongs in API_KEY")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(
            "must be printable ASCII without spaces: of other letters a host has its xn-- form, a path %XX"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("must be a URL such as http://127.0.0.1:3000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must start with http:// or https:// and name a host")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _key(text: str) -> str:
    """Of several lines the first: a server takes a key on each."""
    first = (text.splitlines() or [""])[0]
    if not first.isascii() or not first.isprintable() or first.strip() != first or not first:
        raise ValueError("must be one line of printable ASCII without spaces at its ends")
    return first


def _output(text: str) -> str:
    if text in FORMATS:
        return text
    if Path(text).suffix.removeprefix(".") not in FORMATS:
        raise ValueError("must be md, json or html, or a file that ends in .md, .json or .html")
    if not Path(text).absolute().parent.is_dir():
        raise ValueError("must be in an existing directory")
    return text


server_url = Value("URL", _server_url)
key = Value("KEY", _key)
output = Value("FORMAT|FILE", _output)
slo = Value("NAME=TIME,…", Slo.parse)
