"""Every session knows the pages that prompts can start from, whenever it opened and however seldom it is read."""

import asyncio
import random
from typing import Any

import pytest

from jaxengine.request.cached_pages import CachedPages
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.page_keys import cache_name, root_key, short_keys
from jaxengine.service import cached_pages as module
from jaxengine.service.cached_pages import KnownPages, UntoldPages
from jaxengine.service.session import GatewaySession
from tests.engine_mock import MockOptions
from tests.jaxengine.page_reader import PageReader
from tests.jaxengine.service.test_service import World, generate, read_until_finished, world
from tests.processes import PATIENCE

__all__ = ["world"]

SIZE = 4
caching = pytest.mark.parametrize("world", [MockOptions(prefix_pages=6, page_size=SIZE)], indirect=True)


def keys(prompt: list[int]) -> set[int]:
    """Of its full pages."""
    return {*short_keys(root_key(cache_name("mock/model", "0123abc"), b""), prompt, SIZE)}


async def next_pages(call: Any) -> pb.CachedPages:
    while True:
        message = await asyncio.wait_for(call.read(), PATIENCE)
        if message.HasField("pages"):
            return message.pages  # type: ignore[no-any-return]


@caching
async def test_a_session_is_told_all_pages_first_and_then_what_changes(world: World) -> None:
    world.service.serve(world.engine)
    first, second = world.session(), world.session()
    reader, other = PageReader(), PageReader()
    begin = await next_pages(first)
    assert begin.reset and not begin.cached
    prompts = [[number, *range(40, 53)] for number in (1, 2, 3)]
    for number, prompt in enumerate(prompts):
        await first.write(generate(number, prompt, 2))
        change = await next_pages(first)
        assert not change.reset
        reader.read(change)
    assert reader.keys == keys(prompts[1]) | keys(prompts[2])
    while other.keys != reader.keys:
        other.read(await next_pages(second))
    late = await next_pages(world.session())
    assert late.reset and {*late.cached} == reader.keys and not late.uncached


@caching
async def test_what_is_found_in_the_cache_is_told_with_the_first_token(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    for number, cached in enumerate((0, 12)):
        await call.write(generate(number, [*range(1, 15)], 1))
        assert (await read_until_finished(call, number))[number][1].prompt.cached_tokens == cached
    stats = world.engine.stats()
    assert (stats.prompt_tokens, stats.cached_prompt_tokens, stats.pages_cached) == (16, 12, 3)


@caching
async def test_a_loss_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.service.serve(world.engine)
    call, reader = world.session(), PageReader()
    await call.write(generate(1, [*range(1, 15)], 1))
    while len(reader.keys) < 3:
        reader.read(await next_pages(call))
    monkeypatch.setattr(world.engine._prefixes, "take_changes", lambda: CachedPages(True, [7], []))
    await call.write(generate(2, [5], 1))
    change = await next_pages(call)
    assert change.reset and [*change.cached] == [7]
    assert {*(await next_pages(world.session())).cached} == {7}


async def test_an_engine_without_a_prefix_cache_says_nothing_of_pages(world: World) -> None:
    world.service.serve(world.engine)
    call = world.session()
    await call.write(generate(1, [*range(1, 40)], 30))
    for _ in range(5):
        assert not (await asyncio.wait_for(call.read(), PATIENCE)).HasField("pages")


@pytest.mark.parametrize("seed", range(20))
async def test_however_many_changes_lie_between_two_messages_a_reader_knows_the_pages(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may have come, gone and come again in between."""
    chance = random.Random(seed)
    monkeypatch.setattr(module, "FEW", chance.choice([0, 5, 10_000]))
    known, truth = KnownPages(), set[int]()
    sessions: list[tuple[GatewaySession, UntoldPages, PageReader]] = []
    for step in range(300):
        if chance.random() < 0.02:
            untold = UntoldPages(known)
            sessions.append((GatewaySession(untold), untold, PageReader()))
        reset = chance.random() < 0.01
        before = set() if reset else {*truth}
        truth = {*before, *chance.choices(range(40), k=3)} - {*chance.choices(range(40), k=3)}
        change = CachedPages(reset, sorted(truth - before), [] if reset else sorted(before - truth))
        known.note(change)
        for session, untold, reader in sessions:
            untold.note(change)
            session.flush(step, pb.Stats())
            if chance.random() < 0.2:
                message = await session.take()
                assert message is not None
                reader.read(message.pages if message.HasField("pages") else None)
                assert reader.keys == truth
    assert sessions


def test_a_session_that_does_not_read_keeps_no_more_than_the_pages_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 10)
    known = KnownPages()
    untold = UntoldPages(known)
    untold.tell(pb.StepEvents())
    for number in range(1000):
        change = CachedPages(False, [number], [number - 20])
        known.note(change)
        untold.note(change)
        assert len(untold._changed) <= 20
    message = pb.StepEvents()
    untold.tell(message)
    assert message.pages.reset and {*message.pages.cached} == {*range(980, 1000)}
