"""The keys of cached pages, by which engine and gateway speak of one prefix.

A key is a sha256 chain over everything before the page and the page's own token ids, rooted in the model, the request's
salt and its adapter. The ids that stand for an image are the same for all images, so the key of a page that has some of
them is over the image's digest too, and over where it begins, counted from the page.
"""

import hashlib
from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from typing import Protocol

SHORT_BYTES = 8  # of a key, as messages carry it
PLACE_BYTES = 8  # of where an image begins


class Span(Protocol):
    """An image: its digest, and its tokens in the prompt."""

    @property
    def digest(self) -> bytes: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


def cache_name(model_id: str, revision: str) -> str:
    """The name of a model in its pages' keys."""
    return f"{model_id}@{revision}"


def root_key(model: str, salt: bytes, adapter: bytes = b"") -> bytes:
    """The parent key of a sequence's first page: requests share pages only under the same model, salt and adapter.

    Args:
        model: its `cache_name`.
        adapter: its digest, which tells versions apart as names do not.
    """
    key = hashlib.sha256(b"\x00".join([model.encode(), salt])).digest()
    return hashlib.sha256(key + adapter).digest() if adapter else key


def whole_key(root: bytes, prompt: Ids[int], images: Ids[Span] = ()) -> bytes:
    """The parent key of the first page where all tokens of `prompt` see each other: a page then means the same only in
    front of the same, too.
    """
    return hashlib.sha256(root + array("i", prompt).tobytes() + seen_in(images, 0, len(prompt))).digest()


def page_key(parent: bytes, ids: Ids[int], seen: bytes = b"") -> bytes:
    """The key of a page that holds `ids` and follows the page with key `parent`; of its images it has `seen_in`."""
    return hashlib.sha256(parent + array("i", ids).tobytes() + seen).digest()


def seen_in(images: Ids[Span], start: int, end: int) -> bytes:
    """What tells the images of the tokens from `start` to `end` from others; empty where there are none."""
    if not images:
        return b""
    return b"".join(
        each.digest + (each.offset - start).to_bytes(PLACE_BYTES, "little", signed=True)
        for each in images
        if each.offset < end and start < each.offset + each.length
    )


def short_key(key: bytes) -> int:
    """`key` as `CachedPages` of `engine.proto` has it. Two keys may meet in one: whoever counts on it only guesses."""
    return int.from_bytes(key[:SHORT_BYTES], "little")


def short_keys(root: bytes, ids: Ids[int], page_size: int, images: Ids[Span] = ()) -> Iterator[int]:
    """The short keys of the full pages of `ids`, one after another, each computed when it is asked for."""
    content = memoryview(array("i", ids).tobytes())
    size = page_size * array("i").itemsize
    key = root
    for number, end in enumerate(range(size, len(content) + 1, size)):
        seen = seen_in(images, number * page_size, (number + 1) * page_size)
        key = hashlib.sha256(key + content[end - size : end] + seen).digest()
        yield int.from_bytes(key[:SHORT_BYTES], "little")
