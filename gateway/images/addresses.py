"""Which addresses belong to the public internet: what a stranger's URL may have us connect to.

Python's own `is_global` has changed between releases and knows neither the addresses in which IPv6 carries an IPv4
address to somewhere else, nor the services that clouds put on public addresses. So the registries are copied here:
IANA's special-purpose registries for IPv4 (RFC 6890 and later) and for IPv6, of which only 2000::/3 is in use.
"""

from ipaddress import IPv4Address, IPv6Address, ip_network

Address = IPv4Address | IPv6Address

_GLOBAL_V6 = ip_network("2000::/3")  # which leaves out ::, ::1, mapped, NAT64, unique local, link-local, multicast
_SPECIAL = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT; also Alibaba's metadata at 100.100.100.200
            "127.0.0.0/8",
            "168.63.129.16/32",  # Azure's host service
            "169.254.0.0/16",  # link-local, metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments, metadata of Oracle's cloud
            "192.0.2.0/24",  # documentation, as the two others
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, reserved, broadcast
            "2001::/23",  # Teredo, ORCHID and other protocols
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: an IPv4 address inside
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)


def is_public(address: Address) -> bool:
    if address.version == 6 and address not in _GLOBAL_V6:
        return False
    return not any(address in network for network in _SPECIAL if network.version == address.version)
