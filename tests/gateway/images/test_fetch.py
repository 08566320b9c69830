"""What is fetched, from whom, and what a server that means ill can do."""

import asyncio
import logging
import ssl
import time
from ipaddress import ip_address
from urllib.parse import quote

import pytest
import trustme

from gateway.errors import Kind, RequestError
from gateway.images import http_get
from gateway.images.addresses import Address
from gateway.images.fetch import MAX_REDIRECTS, Fetcher, FetchLimits, absolute
from gateway.images.locator import Remote, parse_locator
from gateway.images.resolving import resolve
from tests.gateway.images.hostile_server import BADLY, PICTURE, WELL, HostileServer, hostile_server

LIMITS = FetchLimits(seconds=1.5, size=1 << 20)
PUBLIC, OTHER_PUBLIC = "93.184.216.34", "2606:2800:220:1::1"


class Names:
    """Stands in for DNS. Of a name with several answers the next look-up has the next, and the last stays."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[Address]:
        self.asked.append(host)
        answers = self._answers.get(host.replace(".", "_"))
        if answers is None:
            return await resolve(host)
        return [ip_address(each) for each in (answers.pop(0) if len(answers) > 1 else answers[0])]


def remote(url: str) -> Remote:
    found = parse_locator(url, 0)
    assert isinstance(found, Remote)
    return found


def local(server: HostileServer, **options: object) -> Fetcher:
    """Reaches the server by its address, which is not public, because that is allowed by itself."""
    return Fetcher([f"127.0.0.1:{server.port}"], LIMITS, **options)  # type: ignore[arg-type]


async def refused(fetcher: Fetcher, url: str) -> str:
    with pytest.raises(RequestError) as caught:
        await fetcher.fetch(remote(url))
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that are connected to; public ones lead to 127.0.0.1."""
    found: list[str] = []
    connect = asyncio.open_connection

    async def open_connection(host: str, port: int, **options: object) -> object:
        found.append(host)
        return await connect("127.0.0.1" if host in (PUBLIC, OTHER_PUBLIC) else host, port, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(http_get.asyncio, "open_connection", open_connection)
    return found


@pytest.mark.parametrize("path", WELL)
async def test_a_picture_is_fetched_however_its_length_is_told(path: str) -> None:
    async with hostile_server() as server:
        assert await local(server).fetch(remote(f"http://127.0.0.1:{server.port}{path}")) == PICTURE


@pytest.mark.parametrize("path", BADLY)
async def test_a_server_that_means_ill_gets_no_more_than_its_time(path: str) -> None:
    began = time.monotonic()
    async with hostile_server() as server:
        message = await refused(local(server), f"http://127.0.0.1:{server.port}{path}")
    assert time.monotonic() - began < 20  # 1.5 s on an idle machine
    assert "fetched" in message or "more than 1048576 bytes" in message


async def test_nothing_of_ours_goes_with_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with hostile_server() as server:
        await local(server).fetch(remote(f"http://127.0.0.1:{server.port}/picture#part"))
    head = server.heads[0]
    assert head.startswith("get /picture http/1.1\r\n") and f"host: 127.0.0.1:{server.port}\r\n" in head
    assert not {"cookie:", "authorization:", "referer:", "gzip"} & set(head.split())


async def test_without_domains_nothing_is_fetched() -> None:
    assert "--allowed-media-domains" in await refused(Fetcher([], LIMITS), "https://example.com/a.png")


async def test_other_hosts_ports_and_names_around_are_refused_before_they_are_looked_up() -> None:
    names = Names()
    fetcher = Fetcher(["images.example", "*.cdn.example", "odd.example:8443"], LIMITS, names=names)
    for url in (
        "http://other.example/", "http://images.example.evil.example/", "http://xn--images.example/",
        "http://a.images.example/", "http://cdn.example/", "http://evilcdn.example/", "http://images.example:22/",
        "https://odd.example/", "http://8.8.8.8/", "http://[2606:2800:220:1::1]/",
    ):  # fmt: skip
        assert "may not be fetched from" in await refused(fetcher, url)
    assert names.asked == []


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "100.100.100.200", "100.64.0.1", "168.63.129.16", "192.0.0.192", "198.18.0.1"),
        *("192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "fe80::1", "fec0::1"),
        *("fc00::1", "fd00:ec2::254", "ff02::1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1", "2002:a00:1::"),
        *("2001::1", "2001:0:7f00:1::", "2001:db8::1", "3fff::1", "100::1", "5f00::1"),
    ],
)
async def test_an_allowed_name_with_an_address_that_is_not_public_is_refused(
    address: str, connected: list[str]
) -> None:
    for addresses in ([address], [PUBLIC, address]):
        names = Names(images_example=[addresses])
        fetcher = Fetcher(["*"], LIMITS, names=names)
        assert await refused(fetcher, "http://images.example/a.png") == "the image could not be fetched"
    literal = f"[{address}]" if ":" in address else address
    assert await refused(fetcher, f"http://{literal}/a.png") == "the image could not be fetched"
    assert connected == []


async def test_a_name_is_looked_up_once_and_that_address_is_connected_to(connected: list[str]) -> None:
    async with hostile_server() as server:
        names = Names(images_example=[[PUBLIC], ["127.0.0.1"]])
        fetcher = Fetcher([f"images.example:{server.port}"], LIMITS, names=names)
        assert await fetcher.fetch(remote(f"http://images.example:{server.port}/picture")) == PICTURE
        assert names.asked == ["images.example"] and connected == [PUBLIC]
        assert "could not be fetched" in await refused(fetcher, f"http://images.example:{server.port}/picture")
        assert connected == [PUBLIC] and server.hits == 1


async def test_the_next_address_is_tried_where_one_does_not_answer(connected: list[str]) -> None:
    async with hostile_server() as server:
        names = Names(images_example=[["127.0.0.9", OTHER_PUBLIC]])
        fetcher = Fetcher([f"images.example:{server.port}", f"127.0.0.9:{server.port}"], LIMITS, names=names)
        assert await fetcher.fetch(remote(f"http://images.example:{server.port}/picture")) == PICTURE
    assert connected == ["127.0.0.9", OTHER_PUBLIC]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed_a_few_times(status: int) -> None:
    async with hostile_server() as server:
        url = f"http://127.0.0.1:{server.port}"
        for location in (
            f"{url}/picture",
            "/picture",
            "picture",
            "?302,/picture",
            f"//127.0.0.1:{server.port}/picture",
        ):
            assert await local(server).fetch(remote(f"{url}/redirect?{status},{location}")) == PICTURE
        server.heads.clear()
        loop = "/redirect?302,/redirect"
        assert "could not be fetched" in await refused(local(server), f"{url}/redirect?302,{loop * 9}")
        assert server.hits <= MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.1:{canary}/picture", "http://127.0.0.1:{canary}@127.0.0.1:{port}/picture"),
        *("http://localhost:{canary}/", "http://[::ffff:127.0.0.1]:{canary}/", "http://0x7f.1:{canary}/"),
        *("http://169.254.169.254/latest/meta-data/", "//169.254.169.254/", "http://metadata.google.internal/"),
        *("https://127.0.0.1:{canary}/", "ftp://127.0.0.1:{canary}/", "file:///etc/passwd", "gopher://127.0.0.1/"),
        *("data:image/png;base64,AAAA", "\\\\127.0.0.1:{canary}\\a", "http:/127.0.0.1:{canary}/", "", "http://"),
        *("http://127.0.0.1:{port}\t.evil/", "http://127.0.0.1\\@127.0.0.1:{canary}/", "javascript:alert(1)"),
    ],
)
async def test_a_redirect_reaches_nothing_that_the_url_could_not(location: str, connected: list[str]) -> None:
    async with hostile_server() as server, hostile_server() as canary:
        location = location.format(port=server.port, canary=canary.port)
        message = await refused(local(server), f"http://127.0.0.1:{server.port}/redirect?302,{quote(location)}")
        assert message == "the image could not be fetched"
        assert canary.hits == 0 and server.hits == 1 and connected == ["127.0.0.1"]


def test_a_relative_redirect_is_read_from_where_it_came() -> None:
    base = Remote("https", "a.example", 8443, "/one/two?three")
    assert absolute(base, "four?x") == "https://a.example:8443/one/four?x"
    assert absolute(base, "?x") == "https://a.example:8443/one/two?x"
    assert absolute(base, "//b.example/x") == "https://b.example/x"


async def test_certificates_are_checked_for_the_name_in_the_url() -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("images.example").configure_cert(theirs)
    ours, others = ssl.create_default_context(), ssl.create_default_context()
    authority.configure_trust(ours)
    stranger.configure_trust(others)
    async with hostile_server(theirs) as server:
        names = Names(images_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
        allowed = [f"{host}:{server.port}" for host in ("127.0.0.1", "images.example", "other.example")]
        fetcher = Fetcher(allowed, LIMITS, names=names, tls=ours)
        url = f"https://images.example:{server.port}"
        assert await fetcher.fetch(remote(f"{url}/picture")) == PICTURE
        for wrong in (f"https://other.example:{server.port}/picture", f"https://127.0.0.1:{server.port}/picture"):
            assert "could not be fetched" in await refused(fetcher, wrong)
        assert "could not be fetched" in await refused(fetcher, f"{url}/redirect?302,http://images.example/picture")
        assert "could not" in await refused(Fetcher(allowed, LIMITS, names=names, tls=others), f"{url}/picture")


async def test_a_resolver_that_hangs_costs_its_request_alone() -> None:
    async def hang(host: str) -> list[Address]:
        if host == "slow.example":
            await asyncio.sleep(3600)
        return [ip_address("127.0.0.1")]

    async with hostile_server() as server:
        allowed = [f"{host}:{server.port}" for host in ("127.0.0.1", "slow.example", "quick.example")]
        fetcher = Fetcher(allowed, LIMITS, names=hang)
        slow = [asyncio.create_task(refused(fetcher, f"http://slow.example:{server.port}/")) for _ in range(5)]
        assert await fetcher.fetch(remote(f"http://quick.example:{server.port}/picture")) == PICTURE
        assert all("within 1.5 s (--image-fetch-timeout)" in each for each in await asyncio.gather(*slow))


async def test_an_address_that_answers_nothing_tells_the_client_no_more_than_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def open_connection(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    url = "http://127.0.0.1:1/"  # where nobody listens
    fetcher = Fetcher(["127.0.0.1:1"], LIMITS)
    refusing = await refused(fetcher, url)
    monkeypatch.setattr(http_get.asyncio, "open_connection", open_connection)
    caplog.set_level(logging.INFO)
    assert await refused(fetcher, url) == refusing
    assert "not fetched from 127.0.0.1:1: no connection within 0.6 s" in caplog.text


async def test_names_are_looked_up_by_the_system() -> None:
    assert ip_address("127.0.0.1") in await resolve("localhost")
    assert await resolve("::1") == [ip_address("::1")]
    with pytest.raises(OSError):
        await resolve("no-such-host.invalid")
