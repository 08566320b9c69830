"""Adapters of several engines, as two HTTP processes change them at once."""

import asyncio
from typing import Any, cast

import pytest

from gateway.engine.client import EngineClient
from gateway.engine.replica_adapters import ReplicaAdapters
from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb


def adapter(name: str) -> pb.Adapter:
    return pb.Adapter(name=name, path=f"org/{name}", digest=f"org/{name}".encode())


class FakeAdapters:
    """What one process knows of the adapters in `engine`: `served` is told by calls only."""

    def __init__(self, engine: dict[str, pb.Adapter], unusable: tuple[str, ...] = ()) -> None:
        self._engine, self.served, self._unusable = engine, dict(engine), unusable

    async def refresh(self) -> None:
        await asyncio.sleep(0)
        self.served = dict(self._engine)

    async def unload(self, name: str) -> None:
        await asyncio.sleep(0)
        if self._engine.pop(name, None) is None:
            raise RequestError(Kind.MODEL_NOT_FOUND, f"no adapter is called {name!r}")
        await self.refresh()

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        await asyncio.sleep(0)
        if path in self._unusable:
            raise RequestError(Kind.INVALID, f"{path} cannot be read")
        self._engine[name] = pb.Adapter(name=name, path=path, digest=path.encode())
        await self.refresh()


class FakeClient:
    def __init__(self, engine: dict[str, pb.Adapter], unusable: tuple[str, ...] = (), *, ready: bool) -> None:
        self.adapters, self.ready = FakeAdapters(engine, unusable), ready
        self.description = pb.Description(max_adapters=4)


def process(*clients: Any) -> ReplicaAdapters:
    return ReplicaAdapters(cast(list[EngineClient], clients))


async def test_processes_that_bring_one_engine_into_line_at_once_do_not_disturb_each_other() -> None:
    engine, other = {"old": adapter("old")}, {"new": adapter("new")}
    returning = [FakeClient(engine, ready=False) for _ in range(2)]
    await asyncio.gather(*(process(each, FakeClient(other, ready=True)).align(0) for each in returning))
    assert set(engine) == {"new"} and all(set(each.adapters.served) == {"new"} for each in returning)


async def test_what_another_process_has_just_loaded_is_unloaded_everywhere() -> None:
    engines: list[dict[str, pb.Adapter]] = [{}, {}]
    one, two = (process(*(FakeClient(engine, ready=True) for engine in engines)) for _ in range(2))
    await one.load("new", "org/new", in_place=False)
    await two.unload("new")
    assert engines == [{}, {}]


async def test_what_not_every_replica_can_read_changes_none() -> None:
    engines = [{"one": adapter("one")} for _ in range(3)]
    unusable: list[tuple[str, ...]] = [(), (), ("org/bad",)]
    clients = [FakeClient(*each, ready=True) for each in zip(engines, unusable, strict=True)]
    for name, in_place in (("one", True), ("new", False)):
        with pytest.raises(RequestError, match="org/bad cannot be read"):
            await process(*clients).load(name, "org/bad", in_place=in_place)
        assert engines == [{"one": adapter("one")}] * 3
