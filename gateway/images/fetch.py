"""Pictures fetched from other machines, for a client who names the URL and must not reach anything else by it.

A host must be allowed by name, and every address that its name has must be public. The name is looked up once, and the
address that was checked is connected to. Each redirect goes through all of that again. A client learns what is written
in its own URL and in our options; what went wrong at the other end is in the log alone, or clients could tell by it
which hosts and ports there are.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import h11

from gateway.errors import RequestError
from gateway.images.addresses import Address
from gateway.images.domains import AllowedDomains
from gateway.images.http_get import Answer, Refused, TooLarge, get
from gateway.images.locator import Remote, parse_locator, too_large
from gateway.images.resolving import Resolve, resolve

logger = logging.getLogger(__name__)

AT_ONCE = 32  # fetches; others wait, which counts as their time
MAX_REDIRECTS = 3
MAX_ADDRESSES = 3  # tried one after the other
CONNECT_SHARE = 0.4  # of all seconds, for one address
REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class FetchLimits:
    """seconds: in all, redirects and names looked up included. size: bytes of the file."""

    seconds: float
    size: int


class Fetcher:
    """Fetches pictures from the hosts that `domains` allow; without any, it refuses every URL."""

    def __init__(
        self,
        domains: Sequence[str],
        limits: FetchLimits,
        *,
        names: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = AllowedDomains(domains)
        self._limits = limits
        self._names = names
        self._tls = tls or ssl.create_default_context()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(self, remote: Remote) -> bytes:
        """The file. Raises RequestError INVALID: not allowed, not found, too large, too slow."""
        self._check_allowed(remote)
        try:
            async with asyncio.timeout(self._limits.seconds), self._slots:
                return bytes(await self._follow(remote))
        except TooLarge:
            raise too_large(self._limits.size) from None
        except TimeoutError:
            limit = f"{self._limits.seconds:g} s (--image-fetch-timeout)"
            raise RequestError.invalid(f"the image could not be fetched within {limit}") from None
        except (Refused, OSError, h11.RemoteProtocolError) as error:
            logger.info("an image was not fetched from %s: %s", remote.authority, error or type(error).__name__)
            raise RequestError.invalid("the image could not be fetched") from None

    def _check_allowed(self, remote: Remote) -> None:
        if not self._allowed:
            raise RequestError.invalid(
                "this server fetches no images (--allowed-media-domains is not set); send the image as a data: URL"
            )
        if not self._allowed.allow(remote):
            raise RequestError.invalid(f"images may not be fetched from {remote.authority} (--allowed-media-domains)")

    async def _follow(self, remote: Remote) -> bytearray:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(remote)
            if answer.status == 200:
                return answer.body
            if answer.status not in REDIRECTS:
                raise Refused(f"status {answer.status}")
            remote = self._redirected(remote, answer.headers.get("location", ""))
        raise Refused(f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, remote: Remote) -> Answer:
        addresses = await self._addresses(remote)
        for address in addresses[:-1]:
            try:
                return await self._get_at(remote, address)
            except OSError as error:
                logger.debug("%s at %s: %s", remote.host, address, error)
        return await self._get_at(remote, addresses[-1])

    async def _get_at(self, remote: Remote, address: Address) -> Answer:
        seconds = self._limits.seconds * CONNECT_SHARE
        return await get(remote, address, self._tls, self._limits.size, seconds)

    async def _addresses(self, remote: Remote) -> list[Address]:
        """Where to connect to. One address that is not public refuses the name: a public host has none."""
        addresses = await self._names(remote.host)
        for address in addresses:
            if not self._allowed.allow_address(address, remote.port):
                raise Refused(f"its address {address} is not public")
        return addresses[:MAX_ADDRESSES]

    def _redirected(self, remote: Remote, location: str) -> Remote:
        try:
            target = parse_locator(absolute(remote, location), 0)
        except RequestError:
            raise Refused("its redirect is not valid") from None
        if not location or not isinstance(target, Remote) or not self._allowed.allow(target):
            raise Refused("it redirects to a host that is not allowed")
        if remote.scheme == "https" and target.scheme == "http":
            raise Refused("it redirects from https to http")
        return target


def absolute(remote: Remote, location: str) -> str:
    """The URL that `location` means in an answer of `remote`."""
    if re.match(r"[a-z][a-z0-9+.-]*:", location, re.IGNORECASE):
        return location
    if location.startswith("//"):
        return f"{remote.scheme}:{location}"
    path = remote.target.partition("?")[0]
    if location.startswith("?"):
        location = path + location
    elif not location.startswith("/"):
        location = path[: path.rindex("/") + 1] + location
    return f"{remote.scheme}://{remote.authority}{location}"
