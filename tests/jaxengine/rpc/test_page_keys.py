"""The keys of cached pages: what engine and gateway must agree on."""

import hashlib
import struct

from jaxengine.rpc.page_keys import page_key, root_key, short_key, short_keys

IDS = [*range(1, 12)]


def test_a_key_is_a_chain_over_all_that_comes_before_its_page() -> None:
    first = hashlib.sha256(b"parent" + struct.pack("=4i", *IDS[:4])).digest()
    assert page_key(b"parent", IDS[:4]) == first
    second = hashlib.sha256(first + struct.pack("=4i", *IDS[4:8])).digest()
    assert list(short_keys(b"parent", IDS, 4)) == [short_key(first), short_key(second)]


def test_a_part_of_a_page_has_no_key() -> None:
    assert [len(list(short_keys(b"", IDS[:count], 4))) for count in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_roots_differ_by_model_salt_and_adapter() -> None:
    roots = {
        root_key("m", b""),
        root_key("n", b""),
        root_key("m", b"s"),
        root_key("m", b"", b"a"),
        root_key("m", b"s", b"a"),
    }
    assert len(roots) == 5
