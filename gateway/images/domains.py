"""What `--allowed-media-domains` allows: hosts by name, and addresses that are not of the public internet by theirs.

A name is allowed as `images.example.com`, all names below one as `*.example.com`, every name as `*`. Ports are 80 and
443 unless an entry names another. A name's address must be public, or be in an entry that is an address or a network
itself: `10.20.0.0/16` says that pictures may come from there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from gateway.images.addresses import Address, is_public
from gateway.images.locator import PORTS, Remote

_ENTRY = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class _Entry:
    """Either a name or a network."""

    name: str
    network: IPv4Network | IPv6Network | None
    ports: frozenset[int]

    def names(self, host: str) -> bool:
        if self.name.startswith("*"):
            return host.endswith(self.name[1:])
        return host == self.name


class AllowedDomains:
    """Raises ValueError for an entry that is none."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._entries = [_parsed(entry) for entry in entries]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def allow(self, remote: Remote) -> bool:
        """Whether pictures may be asked for there, before its address is known."""
        address = _address(remote.host)
        if address is not None and self._lists(address, remote.port):
            return True
        return any(each.names(remote.host) for each in self._entries if not each.network and remote.port in each.ports)

    def allow_address(self, address: Address, port: int) -> bool:
        """Whether an allowed host may lie there."""
        return is_public(address) or self._lists(address, port)

    def _lists(self, address: Address, port: int) -> bool:
        """Whether an entry is its network. Link-local is where clouds keep credentials: never."""
        return not (address.is_link_local or address.is_multicast) and any(
            each.network.version == address.version and address in each.network and port in each.ports
            for each in self._entries
            if each.network
        )


def _parsed(entry: str) -> _Entry:
    parts = _ENTRY.fullmatch(entry.lower())
    if parts is None:
        raise ValueError(f"{entry!r} is no host")
    ports = frozenset([int(parts["port"])] if parts["port"] else PORTS.values())
    text = parts["v6"] or parts["host"]
    try:
        return _Entry("", ip_network(text), ports)
    except ValueError:
        if parts["v6"] or "/" in text:
            raise
        return _Entry(text, None, ports)


def _address(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
