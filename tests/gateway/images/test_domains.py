"""What operators may write of hosts and networks, and whom it lets in."""

from ipaddress import ip_address

import pytest

from gateway.config import values
from gateway.images.domains import AllowedDomains
from gateway.images.locator import Remote, parse_locator


def allows(entry: str, url: str) -> bool:
    remote = parse_locator(url, 0)
    assert isinstance(remote, Remote)
    return AllowedDomains([values.domain.parse(entry)]).allow(remote)


@pytest.mark.parametrize(
    "entry, url, allowed",
    [
        ("a.example", "http://a.example/", True),
        ("A.Example", "https://a.example./", True),
        ("a.example", "http://b.a.example/", False),
        ("a.example", "http://a.example:8080/", False),
        ("a.example:8080", "http://a.example:8080/", True),
        ("a.example:8080", "http://a.example/", False),
        ("*.a.example", "http://c.b.a.example/", True),
        ("*.a.example", "http://a.example/", False),
        ("*.a.example", "http://ba.example/", False),
        ("*", "https://anything.example/", True),
        ("*", "http://anything.example:22/", False),
        ("*:8080", "http://anything.example:8080/", True),
        ("10.1.0.0/16", "http://10.1.2.3/", True),
        ("10.1.0.0/16", "http://10.2.2.3/", False),
        ("10.1.2.3:9000", "http://10.1.2.3:9000/", True),
        ("[fd00::/8]:9000", "http://[fd00::1]:9000/", True),
        ("[fd00::1]", "http://[fd00::2]/", False),
    ],
)
def test_an_entry_allows_what_it_says(entry: str, url: str, allowed: bool) -> None:
    assert allows(entry, url) is allowed


def test_an_address_that_is_not_public_must_be_listed() -> None:
    allowed = AllowedDomains(["a.example", "10.1.0.0/16", "169.254.0.0/15"])
    assert allowed.allow_address(ip_address("93.184.216.34"), 80)
    assert allowed.allow_address(ip_address("10.1.2.3"), 80)
    assert not allowed.allow_address(ip_address("10.1.2.3"), 8080)
    assert not allowed.allow_address(ip_address("10.2.2.3"), 80)
    assert not allowed.allow_address(ip_address("::ffff:10.1.2.3"), 80)
    assert allowed.allow_address(ip_address("169.255.0.1"), 80)
    assert not allowed.allow_address(ip_address("169.254.169.254"), 80)


@pytest.mark.parametrize(
    "text",
    [
        *("", "https://a.example", "a.example/b", "a.example:", "a.example:0", "a.example:123456", "*a.example"),
        *("a.*.example", "**", "*.", "a b", "169.254.169.254", "fe80::/10", "[fe80::1]", "224.0.0.0/4", "0.0.0.0/0"),
        *("10.1.2.3/8", "300.1.2.3", "[::]/0", "a.example,b.example"),
    ],
)
def test_every_other_entry_is_refused_when_the_server_starts(text: str) -> None:
    with pytest.raises(ValueError):
        values.domain.parse(text)
