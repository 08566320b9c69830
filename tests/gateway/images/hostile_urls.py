"""URLs by which a stranger might reach a server on this machine's port, which none of them may."""

from collections.abc import Iterator
from urllib.parse import quote

LOOPBACKS = (
    *("127.0.0.1", "127.1", "127.0.1", "127.9.9.9", "0177.0.0.1", "0177.1", "0x7f.0.0.1", "0x7f.1", "0x7f000001"),
    *("2130706433", "017700000001", "127.0.0.1.", "127.0.0.01", "127.000.000.001", "0", "0.0.0.0", "localhost"),
    *("LOCALHOST", "localhost.", "localhost.localdomain", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]"),
    *("[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::1%25lo]"),
    *("[0000::0001]", "①②⑦.⓪.⓪.①", "127。0。0。1", "\uff4cocalhost", "loc\u00adalhost", "127.0.0.1%00.example"),
    *("user@127.0.0.1", "user:pass@127.0.0.1", "example.com@127.0.0.1", "example.com:80@127.0.0.1", "@127.0.0.1"),
    *("example.com\\@127.0.0.1", "example.com#@127.0.0.1", "127.0.0.1#.example.com", "127.0.0.1\\.example.com"),
    *("127.0.0.1\t", "127.0.0.1 ", " 127.0.0.1", "127.0.0.1\r\nHost:x", "localhost\0", "%6c%6f%63%61%6c%68%6f%73%74"),
)  # fmt: skip
ELSEWHERE = (
    *("http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://metadata.google.internal/"),
    *("http://100.100.100.200/latest/meta-data/", "http://168.63.129.16/", "http://192.0.0.192/opc/v2/"),
    *("http://0xa9fea9fe/", "http://2852039166/", "http://169.254.43518/", "http://[::ffff:a9fe:a9fe]/"),
    *("http://10.0.0.1/", "http://192.168.0.1/", "http://172.17.0.1/", "http://100.64.0.1/", "http://[fe80::1]/"),
    *("http://224.0.0.1/", "http://255.255.255.255/", "http://[ff02::1]/", "http://[fc00::1]/", "http://198.18.0.1/"),
)
SCHEMES = ("ftp", "gopher", "dict", "ldap", "tftp", "ws", "https+unix", "jar:http", "url:http", "view-source:http")


def hostile_urls(port: int) -> Iterator[str]:
    """For a server at `port` of 127.0.0.1, whose path /redirect redirects."""
    for host in LOOPBACKS:
        yield f"http://{host}:{port}/picture"
    yield from ELSEWHERE
    yield from (f"{scheme}://127.0.0.1:{port}/picture" for scheme in SCHEMES)
    yield from (f"http:{slashes}127.0.0.1:{port}/picture" for slashes in ("", "/", "///", "\\\\", "/\\"))
    yield from ("file:///etc/passwd", "/etc/passwd", "//127.0.0.1/", "about:blank", "", "data:text/html;base64,AAAA")


def redirecting_urls(port: int, canary: int) -> Iterator[str]:
    """For a server at `port` that may be reached: each redirects to what must not be."""
    for url in hostile_urls(canary):
        yield f"http://127.0.0.1:{port}/redirect?302,{quote(url)}"
