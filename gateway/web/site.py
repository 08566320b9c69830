"""The files of `static/`, read once, with the headers that each is sent with.

Every file but the pages lies below a folder that is named after the digest of them all, so that browsers may keep files
for ever and modules name each other by relative paths. Pages say where that folder is: `{{files}}` in their text.
"""

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

FOLDER = "web"  # below the server's root
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def _written(policy: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in policy.items())


# Nothing from elsewhere, no inline scripts or styles, no frame around the page, no form that a browser sends by itself.
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "content-security-policy": _written(POLICY),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# The playground shows pictures that its user attaches, and these alone, since markdown becomes no picture.
PLAYGROUND_HEADERS = {**HEADERS, "content-security-policy": _written({**POLICY, "img-src": "'self' data:"})}


@dataclass(frozen=True)
class WebFile:
    """A file as it is sent. `packed` is its content in gzip's format."""

    content: bytes
    packed: bytes
    media_type: str


@dataclass(frozen=True)
class Site:
    """All files.

    version: digest of all files, the name of their folder.
    pages: HTML by name, "playground" for `/playground`.
    files: all others, by their path below the folder.
    """

    version: str
    pages: Mapping[str, WebFile]
    files: Mapping[str, WebFile]


@cache
def site() -> Site:
    """The files of this package."""
    contents = dict(sorted(_contents(files(__package__) / "static", "")))
    digest = hashlib.sha256(b"".join(b"%s\0%d\0%s" % (p.encode(), len(c), c) for p, c in contents.items()))
    version = digest.hexdigest()[:16]
    pages = {path: contents.pop(path) for path in [*contents] if path.endswith(".html")}
    return Site(
        version=version,
        pages={path.removesuffix(".html"): _page(content, version) for path, content in pages.items()},
        files={path: _file(path, content) for path, content in contents.items()},
    )


def _contents(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _contents(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _page(content: bytes, version: str) -> WebFile:
    return _file("page.html", content.replace(b"{{files}}", f"{FOLDER}/{version}".encode()))


def _file(path: str, content: bytes) -> WebFile:
    suffix = path[path.rfind(".") :]
    kind = TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "text/plain"
    return WebFile(content, gzip.compress(content, mtime=0), f"{kind}; charset=utf-8" if "text" in kind else kind)
