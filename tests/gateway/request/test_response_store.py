"""What the store keeps, for whom, and what has to go first."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Kind, RequestError
from gateway.request.response_store import FILE, WAIT_SECONDS, ResponseStore

PLENTY = 1 << 20


async def kept(store: ResponseStore, *ids: str, caller: int = 0) -> list[str]:
    return [id for id in ids if await store.get(id, caller) is not None]


async def put(store: ResponseStore, id: str, caller: int = 0, *items: str, **record: Any) -> bool:
    return await store.put(id, caller, {"name": id, **record}, items)


async def test_a_record_is_found_by_its_own_id_and_by_those_of_its_items() -> None:
    store = ResponseStore(9, PLENTY)
    await put(store, "a", 0, "x", "y", text="ä\u2028")
    assert await store.get("a", 0) == await store.get_by_item("y", 0) == {"name": "a", "text": "ä\u2028"}
    assert await store.get("x", 0) is None and await store.get_by_item("a", 0) is None


async def test_a_caller_sees_only_his_own() -> None:
    store = ResponseStore(9, PLENTY)
    await put(store, "a", 1, "x")
    await put(store, "b", 2, "x")
    assert await store.get("a", 2) is None and not await store.delete("a", 2)
    assert await store.get_by_item("x", 2) == {"name": "b"} and await store.get_by_item("x", 3) is None
    assert await store.get("a", 1) is not None


async def test_what_was_not_used_for_longest_goes_first() -> None:
    store = ResponseStore(3, PLENTY)
    for id in "abc":
        await put(store, id)
    assert await store.get("a", 0) is not None
    await put(store, "d")
    assert await kept(store, *"abcd") == ["a", "c", "d"]


async def test_records_take_no_more_bytes_in_all_than_they_may() -> None:
    store = ResponseStore(9, 300)
    for id in "abc":
        await put(store, id, text="x" * 100)
    assert await kept(store, *"abc") == ["b", "c"]
    assert not await put(store, "too large", text="x" * 300)
    assert await kept(store, "b", "c", "too large") == ["b", "c"]


async def test_items_are_forgotten_with_their_record() -> None:
    store = ResponseStore(1, PLENTY)
    await put(store, "a", 0, "x")
    assert await store.delete("a", 0) and not await store.delete("a", 0)
    assert await store.get_by_item("x", 0) is None
    await put(store, "b", 0, "y")
    await put(store, "c", 0, "z")
    assert await store.get_by_item("y", 0) is None and await store.get_by_item("z", 0) is not None


async def test_a_store_of_nothing_keeps_nothing() -> None:
    store = ResponseStore(0, PLENTY)
    assert not await put(store, "a")
    assert await kept(store, "a") == []


async def test_what_cannot_be_written_is_not_kept_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ResponseStore(9, PLENTY, tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("DROP TABLE records")
    assert not await put(store, "a", text="CANARY")
    assert "could not be stored" in caplog.text and "CANARY" not in caplog.text
    store.close()


async def test_processes_share_what_lies_in_their_directory(tmp_path: Path) -> None:
    one, other = ResponseStore(50, PLENTY, tmp_path), ResponseStore(50, PLENTY, tmp_path)
    ids = [f"{number}" for number in range(40)]
    await asyncio.gather(*(put((one, other)[int(id) % 2], id, 0, f"item {id}") for id in ids))
    assert await kept(one, *ids) == await kept(other, *ids) == ids
    assert await one.delete("7", 0)
    assert await other.get_by_item("item 7", 0) is None
    one.close()
    other.close()


async def test_writes_that_wait_for_another_process_leave_threads_to_other_work(tmp_path: Path) -> None:
    store = ResponseStore(99, PLENTY, tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writes = [asyncio.create_task(put(store, f"{number}")) for number in range(64)]
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.to_thread(lambda: None), WAIT_SECONDS / 2)
        other.execute("ROLLBACK")
    assert all(await asyncio.gather(*writes))
    store.close()


async def test_a_store_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    await put(ResponseStore(9, PLENTY), "a")
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_does_not_answer_is_a_503_and_loses_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResponseStore(10, 10_000)

    def locked() -> sqlite3.Connection:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(store, "_open", locked)
    assert not await store.put("a", 0, {}, [])
    for asked in (store.get("a", 0), store.get_by_item("b", 0), store.delete("a", 0)):
        with pytest.raises(RequestError) as refusal:
            await asked
        assert (refusal.value.kind, refusal.value.retry_after) == (Kind.UNAVAILABLE, 1)
