"""What the text of an option of the benchmark may be, beyond the launcher's kinds."""

from pathlib import Path
from urllib.parse import urlsplit

from gateway.benchmark.slo import Slo
from gateway.config.values import Value, flag, number, one_of, path, text, whole

__all__ = ["FORMATS", "Value", "flag", "number", "one_of", "output", "path", "server_url", "slo", "text", "whole"]

FORMATS = ("md", "json", "html")


def _server_url(text: str) -> str:
    """A server's address without a slash at its end. `/v1` there is dropped: routes are found by their API."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("must be a URL such as http://127.0.0.1:3000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must start with http:// or https:// and name a host")
    if parts.username or parts.query or parts.fragment:
        raise ValueError("must hold no user, query or fragment: a key belongs in API_KEY")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _output(text: str) -> str:
    if text in FORMATS:
        return text
    if Path(text).suffix.removeprefix(".") not in FORMATS:
        raise ValueError("must be md, json or html, or a file that ends in .md, .json or .html")
    if not Path(text).absolute().parent.is_dir():
        raise ValueError("must be in an existing directory")
    return text


server_url = Value("URL", _server_url)
output = Value("FORMAT|FILE", _output)
slo = Value("NAME=TIME,…", Slo.parse)
