"""Where a picture is: inside the request, as a `data:` URL, or on another machine, behind an http or https URL.

A URL is taken apart once, here, by a grammar that is narrower than that of any client library. What is then connected
to is built from the parts, so no second parser can read the text otherwise.
"""

from dataclasses import dataclass


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


def parse_locator(text: str, max_bytes: int) -> Embedded | Remote:
    """Raises RequestError INVALID: neither, or a `data:` URL that holds more than `max_bytes`."""
    raise NotImplementedError


async def embedded_bytes(locator: Embedded) -> bytes:
    """The file in a `data:` URL. Large ones give way to other work. Raises RequestError INVALID: not base64."""
    raise NotImplementedError
