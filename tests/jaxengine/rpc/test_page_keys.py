"""The keys of cached pages: what engine and gateway must agree on."""

import hashlib
import struct

from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.page_keys import page_key, root_key, seen_in, short_key, short_keys, whole_key

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


def image(number: int, offset: int, length: int) -> pb.Image:
    return pb.Image(digest=bytes([number]) * 32, offset=offset, length=length)


def test_the_key_of_a_page_is_over_the_images_in_it_and_where_they_begin() -> None:
    images = [image(1, 2, 3), image(2, 6, 5)]
    place = {number: struct.pack("<q", number) for number in (2, -2, 6 - 4, 6 - 8)}
    assert seen_in(images, 0, 4) == images[0].digest + place[2]
    assert seen_in(images, 4, 8) == images[0].digest + place[-2] + images[1].digest + place[2]
    assert seen_in(images, 8, 12) == images[1].digest + place[-2]
    assert seen_in(images, 5, 6) == seen_in(images, 11, 15) == b""
    first = page_key(b"parent", IDS[:4], seen_in(images, 0, 4))
    second = page_key(first, IDS[4:8], seen_in(images, 4, 8))
    assert list(short_keys(b"parent", IDS, 4, images)) == [short_key(first), short_key(second)]


def test_another_picture_parts_the_keys_from_its_page_on() -> None:
    ids = [*range(16)]
    keys = list(short_keys(b"", ids, 4, [image(1, 5, 2)]))
    assert keys == list(short_keys(b"", ids, 4, [image(1, 5, 2)]))
    others = [list(short_keys(b"", ids, 4, [other])) for other in (image(2, 5, 2), image(1, 6, 2), image(1, 5, 5))]
    assert all(other[0] == keys[0] for other in others)
    assert all(not {*other[2:]} & {*keys} for other in others)
    assert [other[1] == keys[1] for other in others] == [False, False, True]


def test_a_prompt_that_counts_as_a_whole_has_a_root_of_its_own() -> None:
    prompts = ([1, 2, 3], [1, 2, 4], [1, 2])
    roots = {whole_key(b"r", prompt, images) for prompt in prompts for images in ([], [image(1, 1, 1)])}
    assert len({b"r", *roots}) == 7
