"""What an engine tells of its cached pages and of the prompts that are left, while it serves, fails and goes on."""

from collections.abc import Callable, Iterable, Iterator

import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine.engine import Engine
from jaxengine.engine.preparation import Preparation
from jaxengine.grammar.grammar import Grammar
from jaxengine.request.interface import StepResult
from jaxengine.request.sequence import Request, Sequence
from jaxengine.rpc.page_keys import short_key
from tests.jaxengine.engines import Answer, ask, fail_once, finish, prompt
from tests.jaxengine.page_reader import PageReader

REQUESTS = [ask(number, prompt(20 + 3 * number, seed=number), max_tokens=30) for number in range(12)]


@pytest.fixture
def engine(narrow: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """That has just lost its cache, and few pages for a new one."""
    monkeypatch.setattr(narrow.scheduler.tables, "pool", PagePool(15, 16))
    narrow._start_over()
    yield narrow
    monkeypatch.undo()
    narrow._start_over()


def check_told(engine: Engine, requests: Iterable[Request], reader: PageReader) -> list[bool]:
    """Serve `requests`; after each step that tells anything, `reader` knows the pool's index. Which were losses."""
    step, losses = engine.step, []

    def reading() -> StepResult | None:
        result = step()
        if result is not None and result.pages is not None:
            losses.append(result.pages.reset)
            reader.read(result.pages)
        if result is not None:
            pool = engine.scheduler.pool
            assert reader.keys == {short_key(key) for table, key in pool.index if table == 0}
        return result

    engine.step = reading  # type: ignore[method-assign]
    try:
        for request in requests:
            engine.submit(request)
        finish(engine, {request.id: Answer() for request in requests})
    finally:
        del engine.step  # type: ignore[method-assign]
    return losses


def test_the_pages_told_are_those_of_the_index_also_after_a_step_has_failed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = PageReader()
    losses = check_told(engine, REQUESTS, reader)
    assert losses[0] and not any(losses[1:])
    assert reader.keys
    fail_once(engine, monkeypatch, 9)
    assert sum(check_told(engine, REQUESTS, reader)) == 1


def test_without_a_prefix_cache_nothing_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.scheduler.tables, "prefix_cache", False)
    assert check_told(engine, REQUESTS, PageReader()) == []


def test_prompts_count_from_their_arrival_to_their_last_chunk(engine: Engine) -> None:
    """A step computes 16 tokens."""
    engine.submit(REQUESTS[1])
    engine.submit(ask(50, prompt(25, seed=50), max_tokens=3, salt=b"other"))
    left = []
    while not engine.idle:
        engine.step()
        left.append(engine.stats().queued_prefill_tokens)
    assert left[:4] == [32, 16, 1, 0]  # the third step decodes a token too
    assert not any(left[4:])


@pytest.mark.parametrize("cancelled", [False, True], ids=["served", "cancelled"])
def test_what_waits_for_its_grammar_counts_until_it_ends(
    engine: Engine, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[Callable[[], None]] = []
    constrain = Preparation._constrain

    def later(preparation: Preparation, sequence: Sequence) -> None:
        ready.append(lambda: constrain(preparation, sequence))

    monkeypatch.setattr(Preparation, "_constrain", later)
    engine.submit(ask(1, prompt(40), grammar=Grammar("regex", "[a-f]{3}"), max_tokens=9))
    engine.step()
    assert (engine.stats().waiting, engine.stats().queued_prefill_tokens) == (1, 40)
    if cancelled:
        engine.cancel(1)
    else:
        ready[0]()
    finish(engine, {1: Answer()})
    assert engine.stats().queued_prefill_tokens == 0
