"""The random walk finds bugs: for each planted one it names the invariant that the bug breaks."""

from collections.abc import Callable

import pytest

from tests.jaxengine import (
    adapter_mutants,
    beam_mutants,
    draft_mutants,
    image_mutants,
    mutants,
    report_mutants,
    state_mutants,
)
from tests.jaxengine.invariants import check_idle
from tests.jaxengine.random_walk import ATTENDING, KEEPING, SEEING, Walk

WALKS, EVENTS = 260, 400  # what the property tests spend
CAUGHT_BY = mutants.CAUGHT_BY | adapter_mutants.CAUGHT_BY | draft_mutants.CAUGHT_BY | beam_mutants.CAUGHT_BY
CAUGHT_BY |= report_mutants.CAUGHT_BY | image_mutants.CAUGHT_BY | state_mutants.CAUGHT_BY


def complaint(seed: int) -> str:
    """What stops one walk: a broken invariant or a crash of the planted bug; empty if nothing does."""
    try:
        walk = Walk(seed).run(EVENTS)
        walk.engine.serve_until_idle()
        check_idle(walk.engine)
    except (AssertionError, ArithmeticError, LookupError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("bug", "invariant"), CAUGHT_BY.items(), ids=[bug.__name__ for bug in CAUGHT_BY])
def test_the_walk_catches(
    bug: Callable[[pytest.MonkeyPatch], None], invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    seeing = ATTENDING if bug in image_mutants.OF_RUNS else SEEING if bug in image_mutants.CAUGHT_BY else 0
    first = KEEPING if bug in state_mutants.CAUGHT_BY else seeing
    complaints = (complaint(seed) for seed in range(first, WALKS))
    assert any(invariant in text.split(":")[0] for text in complaints)


def test_without_a_bug_the_walk_has_no_complaint() -> None:
    assert [complaint(seed) for seed in range(3)] == ["", "", ""]
