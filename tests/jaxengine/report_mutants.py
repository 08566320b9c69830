"""Bugs to plant in what a gateway is told of the cache and the queue, and in how requests are resumed."""

from collections.abc import Callable, Collection
from collections.abc import Sequence as Ids
from typing import Any

import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine import gauges
from jaxengine.request.cached_pages import CachedPages
from jaxengine.request.sequence import PageTable, Sequence
from jaxengine.rpc.page_keys import short_key
from jaxengine.scheduler.admission import Admission

Patch = pytest.MonkeyPatch


def a_page_that_is_taken_away_is_not_told(patch: Patch) -> None:
    forget = PagePool.forget

    def silent(pool: PagePool, pages: Ids[int]) -> None:
        changed = {*pool.changed}
        forget(pool, pages)
        pool.changed = changed

    patch.setattr(PagePool, "forget", silent)


def a_lost_cache_is_not_told(patch: Patch) -> None:
    reset = PagePool.reset

    def silent(pool: PagePool) -> None:
        reset(pool)
        pool.lost = False

    patch.setattr(PagePool, "reset", silent)


def all_that_has_changed_is_told_to_be_cached(patch: Patch) -> None:
    def changes(pool: PagePool) -> CachedPages:
        lost, cached = pool.lost, [short_key(key) for key in pool.changed]
        pool.lost, pool.changed = False, set()
        return CachedPages(lost, cached, [])

    patch.setattr(PagePool, "take_changes", changes)


def what_a_preempted_request_was_answered_counts_as_prompt(patch: Patch) -> None:
    def whole(sequences: Collection[Sequence]) -> int:
        return sum(len(sequence.tokens) for sequence in sequences)

    patch.setattr(gauges, "_whole", whole)


def all_beams_of_a_search_have_a_prompt_to_compute(patch: Patch) -> None:
    def left(running: Collection[Sequence]) -> int:
        return sum(max(0, each.prompt_length - each.computed) for each in running)

    patch.setattr(gauges, "_left", left)


def what_was_answered_before_counts_as_cached_prompt(patch: Patch) -> None:
    start = Admission._start

    def counting(admission: Admission, sequence: Sequence, prefix: list[PageTable], *others: Any) -> None:
        start(admission, sequence, prefix, *others)
        if sequence.preemptions == 0:
            sequence.cached_tokens = len(prefix[0].pages) * admission.tables.pool.page_size

    patch.setattr(Admission, "_start", counting)


def what_was_answered_before_is_answered_again(patch: Patch) -> None:
    init = Sequence.__init__

    def forgetful(sequence: Sequence, *args: object, **kwargs: object) -> None:
        init(sequence, *args, **kwargs)  # type: ignore[arg-type]
        sequence.max_length += sequence.generated

    patch.setattr(Sequence, "__init__", forgetful)


CAUGHT_BY: dict[Callable[[Patch], None], str] = {
    a_page_that_is_taken_away_is_not_told: "I28",
    a_lost_cache_is_not_told: "I28",
    all_that_has_changed_is_told_to_be_cached: "I28",
    what_a_preempted_request_was_answered_counts_as_prompt: "I29",
    all_beams_of_a_search_have_a_prompt_to_compute: "I29",
    what_was_answered_before_counts_as_cached_prompt: "I7",
    what_was_answered_before_is_answered_again: "I12",
}
