"""Bugs about drafts to plant in the scheduler and in what counts of a verified draft, as those of `mutants`."""

from collections.abc import Callable, Iterator

import pytest

from jaxengine.cache.page_tables import PageTables
from jaxengine.request.event import Token
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.drafting import Drafting
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.speculation.speculator import Room
from jaxengine.step.results import SampledTokens

Patch = pytest.MonkeyPatch


def a_step_is_planned_while_one_verifies(patch: Patch) -> None:
    patch.setattr(Scheduler, "needs_tokens", lambda scheduler, plan: False)


def guesses_stand_behind_tokens_nobody_knows(patch: Patch) -> None:
    def add(drafting: Drafting, plan: Plan, speculator: object, running: int) -> None:
        for row in plan.rows:
            if drafting.room(row.sequence).most > row.sequence.pending:
                count = drafting.tables.grow_for_draft(row.sequence, 1, spare=running)
                row.add_draft([1][:count])
                plan.tokens += count

    patch.setattr(Drafting, "add", add)


def a_draft_goes_on_behind_the_last_token(patch: Patch) -> None:
    room = Drafting.room

    def beyond(drafting: Drafting, sequence: Sequence) -> Room:
        return Room(sequence, room(drafting, sequence).most + 1)

    patch.setattr(Drafting, "room", beyond)


def drafts_ignore_the_budget(patch: Patch) -> None:
    add = Drafting.add

    def unbounded(drafting: Drafting, plan: Plan, speculator: object, running: int) -> None:
        budget, drafting.tables.token_budget = drafting.tables.token_budget, 1 << 30
        add(drafting, plan, speculator, running)  # type: ignore[arg-type]
        drafting.tables.token_budget = budget

    patch.setattr(Drafting, "add", unbounded)


def a_draft_takes_the_pages_that_others_need(patch: Patch) -> None:
    grow = PageTables.grow_for_draft
    patch.setattr(PageTables, "grow_for_draft", lambda tables, sequence, count, spare: grow(tables, sequence, count, 0))


def a_draft_is_given_no_pages(patch: Patch) -> None:
    patch.setattr(PageTables, "grow_for_draft", lambda tables, sequence, count, spare: count)


def a_wrong_guess_counts_as_computed(patch: Patch) -> None:
    _after_completion(patch, lambda row: setattr(row.sequence, "computed", row.start + row.count))


def a_wrong_guess_counts_as_a_token(patch: Patch) -> None:
    _after_completion(patch, lambda row: setattr(row.sequence, "length", row.start + 1 + row.samples))


def _after_completion(patch: Patch, change: Callable[[Row], None]) -> None:
    complete = Scheduler.complete

    def mistaken(scheduler: Scheduler, plan: Plan) -> None:
        complete(scheduler, plan)
        for row in [row for row in plan.rows if row.draft and row.sequence.slot is not None]:
            change(row)

    patch.setattr(Scheduler, "complete", mistaken)


def pages_of_wrong_guesses_are_offered(patch: Patch) -> None:
    _as_if_every_guess_counted(patch, "offer")


def windows_move_on_with_guesses(patch: Patch) -> None:
    _as_if_every_guess_counted(patch, "release_behind_windows")


def _as_if_every_guess_counted(patch: Patch, name: str) -> None:
    """The method `name` of the tables is told of the positions that a step has written, right or wrong."""
    complete, told = Scheduler.complete, getattr(PageTables, name)
    written: dict[Sequence, int] = {}

    def remember(scheduler: Scheduler, plan: Plan) -> None:
        written.update({row.sequence: row.start + row.count for row in plan.rows})
        complete(scheduler, plan)

    patch.setattr(Scheduler, "complete", remember)
    patch.setattr(PageTables, name, lambda tables, sequence, _: told(tables, sequence, written[sequence]))


def a_guess_is_accepted_that_is_wrong(patch: Patch) -> None:
    def by_row(sampled: SampledTokens, rows: list[Row]) -> Iterator[tuple[Row, list[Token], bool]]:
        first = 0
        for row in rows:
            here = slice(first, first + row.samples)
            if row.samples:
                yield row, sampled.tokens[here], all(sampled.finite[here])
            first += row.samples

    patch.setattr(SampledTokens, "by_row", by_row)


CAUGHT_BY: dict[Callable[[Patch], None], str] = {
    a_step_is_planned_while_one_verifies: "I26",
    guesses_stand_behind_tokens_nobody_knows: "I26",
    a_draft_goes_on_behind_the_last_token: "I26",
    drafts_ignore_the_budget: "I11",
    a_draft_takes_the_pages_that_others_need: "I26",
    a_draft_is_given_no_pages: "I11",
    a_wrong_guess_counts_as_computed: "I26",
    a_wrong_guess_counts_as_a_token: "I26",
    pages_of_wrong_guesses_are_offered: "I5",
    windows_move_on_with_guesses: "I8",
    a_guess_is_accepted_that_is_wrong: "I13",
}
