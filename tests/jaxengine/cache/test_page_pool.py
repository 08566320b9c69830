"""What the page pool guarantees, one property a test."""

import hashlib

import pytest

from jaxengine.cache.page_pool import SINK, PagePool
from jaxengine.request.cached_pages import CachedPages
from jaxengine.rpc.page_keys import page_key, root_key, short_key


def cached_chain(pool: PagePool, ids: list[int], salt: bytes = b"") -> tuple[list[bytes], list[int]]:
    """Fill pages with `ids`, offer and release them; returns their keys and pages."""
    keys, key, size = [], root_key("m", salt), pool.page_size
    pages = pool.allocate(len(ids) // size)
    for i, page in enumerate(pages):
        part = ids[i * size : (i + 1) * size]
        key = page_key(key, part)
        keys.append(key)
        pool.commit(page, 0, key, part)
    pool.release(pages)
    return keys, pages


def found(pool: PagePool, keys: list[bytes], ids: list[int]) -> list[int | None]:
    """For each full page of `ids`, the one that holds it."""
    size = pool.page_size
    return [pool.find(0, key, ids[i * size : (i + 1) * size]) for i, key in enumerate(keys)]


def test_the_sink_is_never_handed_out() -> None:
    pool = PagePool(5, 4)
    assert SINK not in pool.allocate(4)
    assert pool.available == 0


def test_a_pool_is_at_least_a_page_beside_the_sink() -> None:
    with pytest.raises(ValueError, match="got 1 pages of 16"):
        PagePool(1, 16)
    with pytest.raises(ValueError, match="got 9 pages of 0"):
        PagePool(9, 0)


def test_an_allocation_that_cannot_be_met_takes_nothing() -> None:
    pool = PagePool(4, 4)
    with pytest.raises(ValueError, match="4 pages asked for, 3 available"):
        pool.allocate(4)
    assert pool.available == 3


def test_a_page_is_free_only_when_its_last_holder_leaves() -> None:
    pool = PagePool(3, 4)
    pages = pool.allocate(1)
    pool.hold(pages)
    pool.release(pages)
    assert pool.used == 1
    pool.release(pages)
    assert pool.used == 0


def test_a_released_prefix_is_found_again_until_its_pages_are_needed() -> None:
    pool, ids = PagePool(4, 2), [1, 2, 3, 4]
    keys, pages = cached_chain(pool, ids)
    assert found(pool, keys, ids) == pages and pool.cached == 2
    pool.allocate(3)
    assert found(pool, keys, ids) == [None, None] and pool.cached == 0


def test_blank_pages_go_before_cached_ones() -> None:
    pool, ids = PagePool(6, 2), [1, 2, 3, 4]
    keys, pages = cached_chain(pool, ids)
    assert not set(pool.allocate(3)) & set(pages)
    assert found(pool, keys, ids) == pages


def test_the_least_recently_used_prefix_is_forgotten_first() -> None:
    pool = PagePool(3, 2)
    (first, [old]), (second, [new]) = cached_chain(pool, [1, 2]), cached_chain(pool, [3, 4])
    pool.hold([old])
    pool.release([old])  # used again, so now the younger one
    assert pool.allocate(1) == [new]
    assert found(pool, first, [1, 2]) == [old] and found(pool, second, [3, 4]) == [None]


def test_the_end_of_a_prefix_is_forgotten_before_its_start() -> None:
    pool, ids = PagePool(4, 2), [1, 2, 3, 4, 5, 6]
    keys, pages = cached_chain(pool, ids)
    assert pool.allocate(1) == pages[2:]
    assert found(pool, keys, ids) == [*pages[:2], None]


def test_a_held_prefix_is_never_forgotten() -> None:
    pool, ids = PagePool(4, 2), [1, 2]
    keys, pages = cached_chain(pool, ids)
    pool.hold(pages)
    pool.allocate(2)
    assert pool.available == 0 and found(pool, keys, ids) == pages


def test_a_twin_of_an_indexed_page_is_not_offered() -> None:
    pool, ids = PagePool(4, 2), [1, 2]
    keys, pages = cached_chain(pool, ids)
    twin = pool.allocate(1)
    pool.commit(twin[0], 0, keys[0], ids)
    pool.release(twin)
    assert found(pool, keys, ids) == pages and pool.cached == 1


def test_a_page_is_found_by_its_own_table_alone() -> None:
    pool, ids = PagePool(4, 2), [1, 2]
    keys, pages = cached_chain(pool, ids)
    assert pool.find(1, keys[0], ids) is None
    other = pool.allocate(1)
    pool.commit(other[0], 1, keys[0], ids)
    assert (pool.find(0, keys[0], ids), pool.find(1, keys[0], ids)) == (pages[0], other[0])


def test_a_key_that_collides_does_not_serve_other_tokens() -> None:
    pool = PagePool(4, 2)
    keys, _ = cached_chain(pool, [1, 2])
    assert found(pool, keys, [1, 3]) == [None]


def test_a_key_depends_on_model_salt_ids_and_everything_before() -> None:
    root = root_key("m", b"")
    roots = {root, root_key("n", b""), root_key("m", b"s")}
    keys = {page_key(parent, ids) for parent in roots for ids in ([1, 2], [2, 1], [1, 258])}
    assert len(roots) == 3 and len(keys) == 9


def test_a_key_is_sha256_of_its_parent_and_the_ids_as_int32() -> None:
    parent = root_key("m", b"salt")
    assert parent == hashlib.sha256(b"m\0salt").digest()
    expected = parent + (1).to_bytes(4, "little") + (70000).to_bytes(4, "little")
    assert page_key(parent, [1, 70000]) == hashlib.sha256(expected).digest()


def test_reset_forgets_holders_and_prefixes() -> None:
    pool, ids = PagePool(4, 2), [1, 2, 3, 4]
    keys, pages = cached_chain(pool, ids)
    pool.hold(pages)
    pool.reset()
    assert (pool.available, pool.used, pool.cached) == (3, 0, 0)
    assert found(pool, keys, ids) == [None, None]


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_pages_for_rounds_up(tokens: int, pages: int) -> None:
    assert PagePool(2, 16).pages_for(tokens) == pages


def shorts(keys: list[bytes]) -> list[int]:
    return sorted(map(short_key, keys))


def test_what_has_become_of_the_index_is_told_once() -> None:
    pool = PagePool(4, 2)
    assert pool.take_changes() is None
    keys, _ = cached_chain(pool, [1, 2, 3, 4])
    told = pool.take_changes()
    assert told is not None and not told.reset
    assert (sorted(told.cached), told.uncached) == (shorts(keys), [])
    assert pool.take_changes() is None
    pool.allocate(2)  # one blank page, and the second of the prefix
    assert pool.take_changes() == CachedPages(False, [], [short_key(keys[1])])


def test_a_page_that_comes_and_goes_is_told_as_it_is_at_last() -> None:
    pool = PagePool(2, 2)
    first, _ = cached_chain(pool, [1, 2])
    second, _ = cached_chain(pool, [3, 4])
    assert pool.take_changes() == CachedPages(False, [short_key(second[0])], [short_key(first[0])])
    cached_chain(pool, [5, 6])
    cached_chain(pool, [3, 4])
    told = pool.take_changes()
    assert told is not None and told.cached == [short_key(second[0])] and short_key(second[0]) not in told.uncached


def test_pages_of_other_tables_are_not_told() -> None:
    pool, ids = PagePool(3, 2), [1, 2]
    [page] = pool.allocate(1)
    pool.commit(page, 1, page_key(root_key("m", b""), ids), ids)
    assert pool.take_changes() is None
    pool.forget([page])
    assert pool.take_changes() is None


def test_a_loss_is_told_and_then_what_came_after_it() -> None:
    pool = PagePool(4, 2)
    cached_chain(pool, [1, 2])
    pool.reset()
    keys, _ = cached_chain(pool, [3, 4])
    assert pool.take_changes() == CachedPages(True, [short_key(keys[0])], [])
    assert pool.take_changes() is None
