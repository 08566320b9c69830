"""Where a picture is: inside the request, as a `data:` URL, or on another machine, behind an http or https URL.

A URL is taken apart once, here, by a grammar that is narrower than that of any client library. What is then connected
to is built from the parts, so no second parser can read the text otherwise. Refused are user names, backslashes,
control characters, zones of IPv6, and every spelling of an address but the plain one: `0177.1`, `0x7f000001` and
`2130706433` are the loopback to a C library.
"""

import asyncio
import binascii
import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import quote

from gateway.errors import RequestError

MAX_URL = 8192  # characters; signed URLs of object stores have up to about 3000
DECODE_AT_ONCE = 256 << 10  # characters of base64, which take 0.5 ms

_DATA = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+);base64,", re.IGNORECASE | re.ASCII)
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?][^#]*)?(?:#.*)?",
    re.IGNORECASE | re.ASCII,
)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a host that ends in one is an IPv4 address, or nothing
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\]")
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Embedded:
    """A picture inside the request.

    mime: what the client calls it, in lower case. The content decides, not this.
    payload: its base64 text, not yet decoded.
    """

    mime: str
    payload: str


@dataclass(frozen=True)
class Remote:
    """A picture on another machine.

    host: a name in lower case without a trailing dot, or an address as `ipaddress` writes it, without brackets.
    target: path and query, ASCII, without a fragment.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def parse_locator(text: str, max_bytes: int) -> Embedded | Remote:
    """Raises RequestError INVALID: neither, or a `data:` URL that holds more than `max_bytes`."""
    if text[:5].lower() == "data:":
        return _embedded(text, max_bytes)
    if text[:7].lower() == "http://" or text[:8].lower() == "https://":
        return _remote(text)
    raise RequestError.invalid("an image's URL must begin with 'data:', 'http://' or 'https://'")


def too_large(max_bytes: int) -> RequestError:
    return RequestError.invalid(f"the image has more than {max_bytes} bytes (--max-image-size)")


async def embedded_bytes(locator: Embedded) -> bytes:
    """The file in a `data:` URL. Large ones give way to other work. Raises RequestError INVALID: not base64."""
    payload = locator.payload
    padding = payload.find("=")
    decoded = bytearray()
    try:
        if 0 <= padding < len(payload) - 2 or len(payload) % 4 or not payload:
            raise ValueError("not whole quartets with padding at the end alone")
        for start in range(0, len(payload), DECODE_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            decoded += binascii.a2b_base64(payload[start : start + DECODE_AT_ONCE], strict_mode=True)
    except ValueError:
        raise RequestError.invalid("the image's data: URL is not valid base64, with padding and no spaces") from None
    return bytes(decoded)


def _embedded(text: str, max_bytes: int) -> Embedded:
    head = _DATA.match(text)
    if head is None:
        raise RequestError.invalid("an image's data: URL must be 'data:image/<type>;base64,<data>'")
    if len(text) - head.end() > (max_bytes + 2) // 3 * 4:
        raise too_large(max_bytes)
    return Embedded(head[1].lower(), text[head.end() :])


def _remote(text: str) -> Remote:
    if len(text) > MAX_URL:
        raise RequestError.invalid(f"an image's URL may have at most {MAX_URL} characters")
    parts = None if _UNPRINTABLE.search(text) else _URL.fullmatch(text)
    host = _host(parts["host"].lower()) if parts else None
    port = int(parts["port"]) if parts and parts["port"] else None
    if parts is None or host is None or (port is not None and not 0 < port < 1 << 16):
        raise RequestError.invalid(
            "the image's URL is not valid: expected http(s)://host[:port]/path, without a user, and the host in ASCII"
        )
    scheme = parts["scheme"].lower()
    return Remote(scheme, host, port or PORTS[scheme], _target(parts["target"] or "/"))


def _host(text: str) -> str | None:
    """The name or address that a URL names, spelled in the one way that everything else reads the same."""
    if text.startswith("["):
        return _address(text[1:-1], 6)
    name = text.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _address(text, 4)
    return name if len(name) < 254 and all(map(_LABEL.fullmatch, labels)) else None


def _address(text: str, version: int) -> str | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.compressed if isinstance(address, IPv6Address) else text) if address.version == version else None


def _target(text: str) -> str:
    """As browsers send it, which take words with spaces and accents in a path."""
    try:
        ascii_text = quote(text, safe="".join(map(chr, range(0x21, 0x7F))))
    except UnicodeEncodeError:  # half of a surrogate pair
        raise RequestError.invalid("the image's URL is not valid Unicode") from None
    return ascii_text if ascii_text.startswith("/") else f"/{ascii_text}"
