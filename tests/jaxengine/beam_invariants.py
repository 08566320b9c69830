"""I27, of beam searches: one is wholly running, wholly waiting or gone; its beams are those that a search without pages
has after as many steps; each writes on in a page of its own; and nothing is planned while one is about to grow.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from jaxengine.cache.page_tables import Fork
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence

if TYPE_CHECKING:
    from tests.jaxengine.fake_engine import FakeEngine


def check_beams(engine: FakeEngine) -> None:
    running = {id(sequence) for sequence in engine.scheduler.batch.running}
    for first in [each for each in engine.recent if each.beams]:
        members, number = first.members, first.request.id
        slots = [member.slot for member in members if member.slot is not None]
        assert len({*slots}) == len(slots), f"I27: beams of search {number} share the slots {slots}"
        if first.finish is not FinishReason.NOT_FINISHED:
            assert all(member.finish is first.finish for member in members), f"I27: search {number} ended in part"
            continue
        assert len(slots) in (0, len(members)), f"I27: of search {number} only {slots} have slots"
        awake = [member for member in members if not member.asleep]
        assert {id(member) for member in members} & running == {id(member) for member in awake if slots}, (
            f"I27: search {number} runs in part"
        )
        _check_texts(engine, first, awake)
        for beam, member in enumerate(members):
            _check_beam(engine, beam, member)
        if slots:
            _check_own_pages(engine, awake)


def _check_texts(engine: FakeEngine, first: Sequence, awake: list[Sequence]) -> None:
    """All beams have grown equally, to those that the reference has then."""
    reference, generated = engine.references[first.request.id], len(first.tokens) - first.prompt_length
    assert len(awake) == (len(first.members) if generated else 1), f"I27: {len(awake)} beams are awake"
    texts = {tuple(member.tokens) for member in awake}
    assert texts == reference.beams(generated), f"I27: search {first.request.id} has the beams {texts}"


def _check_beam(engine: FakeEngine, beam: int, member: Sequence) -> None:
    assert member.beams is not None
    if member.asleep:
        counts = (member.computed, member.pending, member.offered_pages, member.in_flight)
        assert not any(counts), f"I27: beam {beam} is asleep and has {counts}"
        pages = len(engine.device.tables(member)[1][0]) if member.tables else 1
        assert pages == 1, f"I27: beam {beam} is asleep with {pages} pages in a table"
    elif not member.in_flight:
        noted, known = beam in member.beams.noted, len(member.tokens)
        assert noted == (member.computed == known), f"I27: beam {beam} has {member.computed} of {known}, {noted=}"


def _check_own_pages(engine: FakeEngine, awake: list[Sequence]) -> None:
    """The page in which each beam writes on is its own."""
    pool = engine.pool
    tables = [table for member in awake for table in engine.device.tables(member)[1]]
    last = [member.computed // pool.page_size for member in awake for _ in member.tables]
    pages = [table[i] for table, i in zip(tables, last, strict=True) if i < len(table)]
    assert len({*pages}) == len(pages), f"I27: beams write on in the same pages, {pages}"
    assert all(pool.references[page] == 1 for page in pages), f"I27: beams write on in shared pages, {pages}"


def check_forks(engine: FakeEngine, first: Sequence, moves: list[tuple[int, int]], forks: Items[Fork]) -> None:
    """What the device is told to copy is what children need and nobody else reads."""
    size = engine.pool.page_size
    assert not engine.steps, "I27: beams grow while a step is in flight"
    sources = {source for fork in forks for source, _ in fork.copies}
    targets = [target for fork in forks for _, target in fork.copies]
    assert len({*targets}) == len(targets) and not sources & {*targets}, f"I27: {targets} are copied from {sources}"
    assert [fork.child for fork in forks] == [first.members[child] for _, child in moves], "I27: not those that moved"
    for fork in forks:
        partial = len(fork.child.tables) * (fork.child.computed % size > 0)
        assert len(fork.copies) == partial, f"I27: {len(fork.copies)} pages are copied, {partial} are not full"
    engine.events["searches that have begun"] += len(first.tokens) == first.prompt_length + 1
    engine.events["forks"] += len(forks)
    engine.events["copies"] += len(targets)
    engine.events["forks of whole pages"] += sum(not fork.copies for fork in forks)
    engine.events["forks behind a window"] += sum(fork.child.tables[-1].released > 0 for fork in forks)
    engine.events["forks that keep pages"] += sum(fork.kept > 0 for fork in forks)


class BeamCheck:
    """Records what runs before a plan is made, then checks the beams in it."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.before = [sequence for sequence in engine.scheduler.batch.running if sequence.beams]
        self.half_way = list(filter(is_half_way, self.before))

    def __call__(self, plan: Plan) -> None:
        growing = [step.plan for step in self.engine.steps if step.plan.grows_beams]
        assert not (plan.rows and growing), "I27: planned while a step in flight grows beams"
        assert not any(row.sequence.asleep or row.draft for row in plan.rows if row.sequence.beams), "I27: a wrong row"
        admitted = {id(sequence) for sequence in plan.admitted}
        for sequence in plan.admitted:
            together = {id(member) for member in sequence.members}
            assert together <= admitted, f"I27: search {sequence.request.id} is admitted in part"
        self._note(plan)

    def _note(self, plan: Plan) -> None:
        events = self.engine.events
        searches = [sequence for sequence in plan.admitted if sequence.beams and sequence.first]
        again = [sequence for sequence in searches if sequence.beams and sequence.beams.begun]
        events["searches admitted"] += len(searches)
        events["searches that go on"] += len(again)
        events["searches with an adapter"] += sum(sequence.adapter is not None for sequence in searches)
        events["searches that take all slots"] += sum(
            len(s.members) == self.engine.scheduler.slots > 1 for s in searches
        )
        beams = [beam for sequence in again for beam in sequence.members]
        rows = {id(row.sequence) for row in plan.rows}
        events["beams with a cached prefix"] += sum(beam.offered_pages > 0 for beam in beams)
        events["beams that wait for tokens"] += sum(id(beam) not in rows for beam in beams)
        lost = [sequence for sequence in self.before if sequence.first and sequence.slot is None]
        events["searches preempted"] += len(lost)
        events["searches interrupted half way"] += sum(sequence in self.half_way for sequence in lost)


def note_interrupted(engine: FakeEngine, sequences: Items[Sequence]) -> None:
    """Requests are about to be ended or to be started over."""
    placed = [sequence for sequence in sequences if sequence.slot is not None and len(sequence.members) > 1]
    engine.events["searches interrupted asleep"] += sum(sequence.members[1].asleep for sequence in placed)
    engine.events["searches interrupted half way"] += sum(is_half_way(sequence) for sequence in placed)


def is_half_way(sequence: Sequence) -> bool:
    """Whether some of its search's beams have been sampled, and others have not."""
    return sequence.beams is not None and bool(sequence.beams.noted)
