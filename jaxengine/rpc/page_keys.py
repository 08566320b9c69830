"""The keys of cached pages, by which engine and gateway speak of one prefix.

A key is a sha256 chain over everything before the page and the page's own token ids, rooted in the model, the request's
salt and its adapter.
"""

import hashlib
from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Ids

SHORT_BYTES = 8  # of a key, as messages carry it


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


def page_key(parent: bytes, ids: Ids[int]) -> bytes:
    """The key of a page that holds `ids` and follows the page with key `parent`."""
    return hashlib.sha256(parent + array("i", ids).tobytes()).digest()


def short_key(key: bytes) -> int:
    """`key` as `CachedPages` of `engine.proto` has it. Two keys may meet in one: whoever counts on it only guesses."""
    return int.from_bytes(key[:SHORT_BYTES], "little")


def short_keys(root: bytes, ids: Ids[int], page_size: int) -> Iterator[int]:
    """The short keys of the full pages of `ids`, one after another, each computed when it is asked for."""
    content = memoryview(array("i", ids).tobytes())
    size = page_size * array("i").itemsize
    key = root
    for end in range(size, len(content) + 1, size):
        key = hashlib.sha256(key + content[end - size : end]).digest()
        yield int.from_bytes(key[:SHORT_BYTES], "little")
