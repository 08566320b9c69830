"""The page counts that admission and growth use keep their order after any events."""

from collections import Counter

import pytest

from jaxengine.cache.page_need import peak_pages
from jaxengine.cache.page_tables import PageTables
from jaxengine.request.sequence import PageTable, Sequence
from tests.jaxengine.fake_engine import MAX_IN_FLIGHT
from tests.jaxengine.random_walk import Walk

WALKS, EVENTS = 60, 150


def test_what_the_next_step_takes_is_in_what_known_tokens_take_and_that_is_in_the_reserve() -> None:
    met: Counter[str] = Counter()
    for seed in range(WALKS):
        walk = Walk(seed)
        for _ in range(EVENTS):
            walk.run(1)
            if len(walk.engine.steps) < MAX_IN_FLIGHT:  # a plan could be asked for
                for sequence in walk.engine.scheduler.batch.running:
                    need = walk.engine.scheduler.tables.need(sequence)
                    assert 0 <= need.next_step <= need.known_tokens <= need.reserve, f"seed {seed}: {need}"
                    met["growing"] += need.next_step > 0
                    met["later"] += need.next_step < need.known_tokens
                    met["reserved"] += need.known_tokens < need.reserve
    assert min(met[each] for each in ("growing", "later", "reserved")) >= 50, met


def test_a_start_takes_at_least_the_lower_bound_and_what_is_left_of_it_is_still_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `need_to_start` counts is what `start` takes at once and what `need` counts from then on."""
    starts: Counter[str] = Counter()
    start = PageTables.start

    def checked(tables: PageTables, sequence: Sequence, prefix: list[PageTable]) -> None:
        least, total = tables.least_to_start(sequence), tables.need_to_start(sequence, prefix)
        total += sum(map(tables.need_of_beam, sequence.members[1:]))
        free = tables.pool.available
        assert 0 <= least <= total <= free
        start(tables, sequence, prefix)
        taken = free - tables.pool.available
        later = sum(tables.need(each).known_tokens for each in sequence.members if not each.asleep)
        assert taken + later == total or (len(sequence.members) > 1 and taken + later < total)  # beams share pages
        starts["all"] += 1
        starts["bound below"] += least < total
        starts["rest"] += taken < total

    monkeypatch.setattr(PageTables, "start", checked)
    for seed in range(WALKS):
        Walk(seed).run(EVENTS).engine.serve_until_idle()
    assert min(starts.values()) >= 20 and len(starts) == 3, starts


@pytest.mark.parametrize(
    ("tokens", "window", "budget", "pages"),
    [(100, 0, 8, 7), (1, 0, 8, 1), (100, 20, 8, 4), (10, 20, 8, 1), (10_000, 40, 32, 8)],
)
def test_a_window_bounds_what_a_table_holds(tokens: int, window: int, budget: int, pages: int) -> None:
    assert peak_pages(tokens, 16, window, budget) == pages
