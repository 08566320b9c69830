"""URLs of pictures: one spelling of each host is read, and nothing else is."""

import base64

import pytest

from gateway.errors import Kind, RequestError
from gateway.images.acquisition import Acquisition
from gateway.images.fetch import Fetcher, FetchLimits
from gateway.images.locator import Embedded, Remote, embedded_bytes, parse_locator

SIZE = 1000


def refusal(text: str, size: int = SIZE) -> str:
    with pytest.raises(RequestError) as caught:
        parse_locator(text, size)
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


@pytest.mark.parametrize(
    "url, expected",
    [
        ("http://a.example", Remote("http", "a.example", 80, "/")),
        ("HTTPS://A.Example./b", Remote("https", "a.example", 443, "/b")),
        ("https://a.example:8443/b?c=d#e", Remote("https", "a.example", 8443, "/b?c=d")),
        ("https://a.example?c", Remote("https", "a.example", 443, "/?c")),
        ("http://a.example/a b/é%20", Remote("http", "a.example", 80, "/a%20b/%C3%A9%20")),
        ("http://a.example/x@y:z", Remote("http", "a.example", 80, "/x@y:z")),
        ("http://8.8.8.8/", Remote("http", "8.8.8.8", 80, "/")),
        ("http://[2606:2800:0220:0001:0:0:0:1]:81/", Remote("http", "2606:2800:220:1::1", 81, "/")),
        ("http://under_score.example/", Remote("http", "under_score.example", 80, "/")),
        ("http://xn--bcher-kva.example/", Remote("http", "xn--bcher-kva.example", 80, "/")),
    ],
)
def test_urls_are_taken_apart(url: str, expected: Remote) -> None:
    assert parse_locator(url, SIZE) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("http://0177.0.0.1/", "http://0x7f.0.0.1/", "http://0x7f000001/", "http://2130706433/", "http://127.1/"),
        *("http://127.0.1/", "http://017700000001/", "http://127.0.0.01/", "http://127.0.0.1./", "http://1.2.3.4.5/"),
        *("http://256.256.256.256/", "http://127.0.0.0x1/", "http://0/", "http://a.1/", "http://0x/"),
        *("http://[::1%25eth0]/", "http://[::1%eth0]/", "http://[::1/", "http://::1/", "http://[127.0.0.1]/"),
        *("http://[v1.a]/", "http://[]/", "http://[::1]a/", "http://[::ffff:127.1]/"),
        *("http://user@a.example/", "http://user:pass@a.example/", "http://a.example:80@b.example/", "http://@a.b/"),
        *("http://a.example\\@b.example/", "http:\\\\a.example/", "http://a.example\\b", "http://a.example/\\..\\"),
        *("http://a.example:0/", "http://a.example:65536/", "http://a.example:080000/", "http://a.example:/"),
        *("http://a.example:8o/", "http://a.example:-1/", "http://a.example:80:80/", "http://a.example:\uff18\uff10/"),
        *("http://a..example/", "http://.example/", "http://-a.example/", "http://a-.example/", "http://./"),
        *(f"http://{'a' * 64}.example/", f"http://{'a.' * 127}example/", "http:///a", "http://", "http://?a"),
        *("http://a.example /", "http://a .example/", "http://a\t.example/", "http://a.example/\r\nHost: b", "http://a%2eb/"),
        *("http://a.example/\0", "http://a.example/\x7f", " http://a.example/", "\nhttp://a.example/"),
        *("http://bücher.example/", "http://\uff41.example/", "http://127。0。0。1/", "http://①②⑦.0.0.1/", "http://lo\u00adcal/"),
        *("http:/a.example/", "http:a.example", "//a.example/", "a.example/b.png", "/etc/passwd", "", "http"),
        *("file:///etc/passwd", "ftp://a.example/", "gopher://a.example/", "javascript:alert(1)", "blob:http://a/"),
        *("jar:http://a.example!/", "unix:/run/docker.sock", "s3://bucket/key", "https+unix://a/", "dict://a:11211/"),
        *("http://a.example/\ud800", "http://a.example/" + "x" * 9000, "https://a.example:443a/", "httpx://a.example/"),
    ],
)  # fmt: skip
def test_every_other_spelling_is_refused(url: str) -> None:
    message = refusal(url)
    assert len(message) < 200 and (not url or len(url) < 8 or url not in message)


@pytest.mark.parametrize("mime", ["image/png", "IMAGE/JPEG", "image/x-ms-bmp", "application/octet-stream"])
async def test_a_data_url_is_decoded(mime: str) -> None:
    data = bytes(range(256)) * 3
    found = parse_locator(f"DATA:{mime};base64,{base64.b64encode(data).decode()}", SIZE)
    assert isinstance(found, Embedded) and found.mime == mime.lower()
    assert await embedded_bytes(found) == data


@pytest.mark.parametrize(
    "url",
    [
        *("data:", "data:,", "data:image/png", "data:image/png;base64", "data:image/png,AAAA", "data:;base64,AAAA"),
        *("data:image/png;base64;AAAA", "data:image/png; base64,AAAA", "data:image/png;charset=x;base64,AAAA"),
        *("data:image;base64,AAAA", "data:image/png;BASE32,AAAA", "data://image/png;base64,AAAA", "data :image/png,A"),
    ],
)
def test_every_other_data_url_is_refused(url: str) -> None:
    refusal(url)


@pytest.mark.parametrize(
    "payload",
    ["", "A", "AA", "AAA", "=", "====", "AA=A", "A===", "AAAA\n", "AA AA", "AAA=AAAA", "AA==AAAA", "AA-_", "ÄÄÄÄ"],
)
async def test_what_is_no_base64_is_refused(payload: str) -> None:
    with pytest.raises(RequestError, match="base64"):
        await embedded_bytes(Embedded("image/png", payload))


async def test_base64_is_whole_where_it_is_decoded_in_parts() -> None:
    data = bytes(range(251)) * 4000
    assert await embedded_bytes(Embedded("image/png", base64.b64encode(data).decode())) == data
    broken = base64.b64encode(data[: 3 * 65536 - 1]).decode() + "AAAA"  # padding where a part may end
    with pytest.raises(RequestError, match="base64"):
        await embedded_bytes(Embedded("image/png", broken))


async def test_a_file_has_at_most_as_many_bytes_as_it_may() -> None:
    files = Acquisition(Fetcher([], FetchLimits(1, SIZE)), SIZE)

    def url(size: int, mime: str = "image/png") -> str:
        return f"data:{mime};base64,{base64.b64encode(bytes(size)).decode()}"

    assert await files.file(url(SIZE)) == bytes(SIZE)
    for size in (SIZE + 1, SIZE + 2, 2 * SIZE):
        with pytest.raises(RequestError, match=r"more than 1000 bytes \(--max-image-size\)"):
            await files.file(url(size))
    with pytest.raises(RequestError, match="must be of type image/png"):
        await files.file(url(9, "text/html"))
