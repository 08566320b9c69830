"""Rows of images: what is found again, what goes first, and what is never taken from who reads it."""

import pytest

from jaxengine.architecture.picture import PictureShape
from jaxengine.cache.image_pool import ImagePool, Key


def key(number: int, patches: int = 4) -> Key:
    return bytes([number]) * 32, PictureShape(((1, patches),), 8, 8)


def test_an_image_is_found_again_until_others_need_its_rows() -> None:
    pool = ImagePool(5)
    first, second = pool.place(key(1), 2), pool.place(key(2), 2)
    assert pool.available == 1
    pool.release(first)
    pool.release(second)
    assert pool.available == 5
    assert pool.hold(key(1)) is first  # now the second is the one unused for longest
    pool.release(first)
    third = pool.place(key(3), 3)
    assert pool.hold(key(2)) is None and pool.hold(key(1)) is first
    assert not {*first.rows.tolist()} & {*third.rows.tolist()}


def test_rows_that_somebody_holds_are_not_taken() -> None:
    pool = ImagePool(5)
    first = pool.place(key(1), 3)
    assert pool.hold(key(1)) is first
    pool.release(first)
    with pytest.raises(ValueError, match="an image of 3 rows, 2 are available"):
        pool.place(key(2), 3)
    pool.release(first)
    assert len(pool.place(key(2), 3).rows) == 3


def test_one_digest_with_two_shapes_is_two_images() -> None:
    pool = ImagePool(8)
    pool.place(key(1, 4), 2)
    assert pool.hold(key(1, 6)) is None


def test_what_is_forgotten_is_not_found_but_read_to_the_end() -> None:
    pool = ImagePool(4)
    bad, kept = pool.place(key(1), 2), pool.place(key(2), 2)
    pool.release(kept)
    pool.forget([key(1), key(2), key(3)])
    assert pool.hold(key(1)) is None and pool.hold(key(2)) is None
    assert pool.available == 2
    again = pool.place(key(1), 2)
    assert not {*again.rows.tolist()} & {*bad.rows.tolist()}
    pool.release(bad)
    assert pool.available == 2


def test_nothing_outlives_a_lost_pool() -> None:
    pool = ImagePool(4)
    pool.release(pool.place(key(1), 3))
    pool.reset()
    assert pool.hold(key(1)) is None and pool.available == 4
