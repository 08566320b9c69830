"""The scheduler's invariants: what holds after every event, and for every plan, whatever the requests.

Each message starts with the invariant's number. `check_state` holds I1-I3, I5, I6, I9, I10, I12, I13, I18 and I19,
`PlanCheck` I4, I7-I9, I11, I16 and I17. `check_idle` holds I20, I24 and, with I13, that a request's tokens depend
neither on its neighbours nor on preemption (I14). I23 is about adapters: each lies in the slot of the stacks that its
sequences hold, exactly while they run, and nobody is passed too often for want of such a slot. I26 is about drafts:
nothing is planned on guesses, and none leaves a trace. I27 is about beam searches, see `beam_invariants`, I30
about images, see `image_invariants`, I31 about states, see `state_invariants`. I28 and I29
are about what a gateway is told: the pages that prompts can start from, and how much of prompts is left. Properties
that need two runs or a special event are in their own tests: I15 (abort), I22 (a failed step), I25 (determinism). I21
(grammars) does not exist yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from jaxengine.cache.page_pool import SINK
from jaxengine.engine.gauges import gauges
from jaxengine.request.event import FinishReason
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.rpc.page_keys import page_key, seen_in, short_key
from tests.jaxengine.adapter_invariants import PlacementCheck, check_adapters, count_passed, waits_for_adapter
from tests.jaxengine.beam_invariants import BeamCheck, check_beams
from tests.jaxengine.draft_invariants import DraftCheck, check_drafts
from tests.jaxengine.fake_device import digest_of
from tests.jaxengine.fake_model import encoder_contents, whole_content
from tests.jaxengine.image_invariants import ImageCheck, check_images, holders_left
from tests.jaxengine.state_invariants import check_snapshots

if TYPE_CHECKING:
    from tests.jaxengine.fake_engine import FakeEngine

Only = Callable[[Sequence], bool]


def check_state(engine: FakeEngine) -> None:
    _check_pages(engine)
    _check_index(engine)
    _check_told(engine)
    _check_queued_prefill(engine)
    _check_queues(engine)
    _check_in_flight(engine)
    check_adapters(engine)
    check_drafts(engine)
    check_beams(engine)
    check_images(engine)
    check_snapshots(engine)
    for sequence in engine.members:
        _check_sequence(engine, sequence)


def check_idle(engine: FakeEngine) -> None:
    """All requests have ended, each with the tokens that it has when served alone, and nothing is left of them."""
    scheduler, pool = engine.scheduler, engine.pool
    assert scheduler.idle and not engine.steps, "I24: not idle"
    assert not any(pool.references), f"I24: pages still held: {pool.references}"
    assert pool.available == pool.total - 1, f"I24: {pool.available} of {pool.total - 1} pages came back"
    assert sorted(scheduler.batch.free_slots) == list(range(scheduler.slots)), (
        f"I24: free slots {scheduler.batch.free_slots}"
    )
    assert not any(scheduler.batch.adapters.held), f"I24: adapters still held: {scheduler.batch.adapters.held}"
    assert not holders_left(engine), "I24: images still held"
    for sequence in engine.sequences:
        assert sequence.finish is not FinishReason.NOT_FINISHED, f"I20: request {sequence.request.id} never ended"
        if sequence.finish in (FinishReason.EOS, FinishReason.LENGTH, FinishReason.STOP_TOKEN):
            _check_answer(engine, sequence)


def _check_answer(engine: FakeEngine, sequence: Sequence) -> None:
    reference, found = engine.references[sequence.request.id], engine.found.get(sequence.request.id, [])
    if reference.searched is None:
        assert sequence.tokens == reference.tokens, "I14: tokens differ from alone"
        return
    answers, scores = [[token.id for token in beam.tokens] for beam in found], [beam.score for beam in found]
    assert answers == [ids for ids, _ in reference.searched.answers], "I14: the answers of a search differ from alone"
    assert scores == pytest.approx([score for _, score in reference.searched.answers]), "I14: their scores differ"


def _check_pages(engine: FakeEngine) -> None:
    pool = engine.pool
    held = Counter(page for s in engine.placed for table in s.tables for page in table.held)
    assert pool.references == [held[page] for page in range(pool.total)], "I2: references differ from holders"
    free = [*pool.blank, *pool.reusable]
    unheld = [page for page in range(SINK + 1, pool.total) if not held[page]]
    assert held[SINK] == 0 and sorted(free) == unheld, f"I1: free {sorted(free)}, not held {unheld}"
    assert not set(pool.blank) & pool.content.keys(), "I1: a blank page still holds a prefix"
    counted = (pool.available, pool.used, pool.cached)
    cached = sum(1 for page in pool.content if not held[page])
    assert counted == (len(unheld), pool.total - 1 - len(unheld), cached), f"I19: counted {counted}"


def _check_index(engine: FakeEngine) -> None:
    pool = engine.pool
    assert pool.index == {each[:2]: page for page, each in pool.content.items()}, "I6: index and pages disagree"
    for page, (table, hashed, ids) in pool.content.items():
        key = (table, hashed)
        assert key in engine.truth, f"I5: page {page} is offered under a key that no request's full page has"
        assert ids == engine.truth[key][0], f"I5: page {page} holds ids {ids} under the key of others"
        assert engine.device.cells[page] == engine.truth[key][1], f"I5: page {page} holds not what its key says"


def _check_told(engine: FakeEngine) -> None:
    """Asked now and then, so that what has changed several times is told once."""
    if len(engine.decisions) % 3 == 0:
        engine.reader.read(engine.pool.take_changes())
        offered = {short_key(key) for table, key in engine.pool.index if table == 0}
        assert engine.reader.keys == offered, "I28: who is told the changes of the index does not know it"


def _check_queued_prefill(engine: FakeEngine) -> None:
    """By the rows of dispatched steps. An encoder input is read in the first."""
    scheduler = engine.scheduler
    left = sum(len(sequence.request.prompt) for sequence in scheduler.queue.waiting)
    for sequence in [] if engine.encoder else scheduler.batch.running:
        left += max(0, len(sequence.request.prompt) - engine.read[sequence]) if sequence.first else 0
    counted = gauges(scheduler, ())["queued_prefill_tokens"]
    assert counted == left, f"I29: {counted} tokens of prompts are said to be left, {left} are"


def _check_queues(engine: FakeEngine) -> None:
    scheduler = engine.scheduler
    for queue in (scheduler.queue.waiting, scheduler.batch.running):
        orders = [s.order for s in queue]
        assert orders == sorted(orders), "I17: a queue is out of order"
    alive = sorted(s.request.id for s in engine.sequences if s.finish is FinishReason.NOT_FINISHED)
    queued = sorted(s.request.id for s in (*scheduler.queue.waiting, *scheduler.batch.running) if s.first)
    assert queued == alive, f"I10: {queued} are waiting or running, {alive} should be"
    leaving = {s.request.id for s in scheduler.batch.leaving}
    once = len({id(s) for s in scheduler.batch.leaving}) == len(scheduler.batch.leaving)
    assert once and not leaving & set(alive), f"I10: {leaving} are leaving"
    slots = [-1 if s.slot is None else s.slot for s in engine.placed]
    assert sorted([*slots, *scheduler.batch.free_slots]) == list(range(scheduler.slots)), (
        f"I11: {slots} slots are taken"
    )


def _check_sequence(engine: FakeEngine, sequence: Sequence) -> None:
    if sequence.slot is None:
        counts = (sequence.computed, sequence.again, sequence.pending, sequence.offered_pages, sequence.in_flight)
        assert not any((sequence.tables, *counts)), f"I3: a sequence without a slot keeps {sequence.tables}, {counts}"
    else:
        _check_tables(engine, sequence)
    request, tokens = sequence.request, sequence.tokens
    assert engine.references[request.id].passes(tokens), f"I13: request {request.id} has {tokens}"
    assert sequence.generated <= sequence.params.max_tokens, "I12: more tokens than asked for"
    known = sequence.prompt_length + bool(request.resume)  # the last known token is computed in any case
    assert sequence.cached_tokens < known, "I7: more than can be used of the prompt is said to be cached"


def _check_tables(engine: FakeEngine, sequence: Sequence) -> None:
    size, tables = engine.pool.page_size, sequence.tables
    assert sequence.computed <= sequence.length, "I12: more computed than there are tokens"
    held = [page for table in tables for page in table.held]
    assert len(set(held)) == len(held), f"I3: a page twice in {held}"
    assert len({len(table.pages) for table in tables}) == 1, "I3: tables differ in length"
    length = max(sequence.length, engine.drafted.get(sequence, 0))
    for table, most in zip(tables, engine.peak(length), strict=True):
        given = table.pages[: table.released]
        assert given == [SINK] * table.released, "I3: a page given back is still in the table"
        assert engine.encoder or len(table.held) <= most, f"I3: {len(table.held)} pages held, its window needs {most}"
    low, high = -(-sequence.computed // size), -(-length // size)
    encoder_pages, own = engine.device.tables(sequence)
    assert len(encoder_pages) == -(-len(sequence.encoder_input) // size), "I3: pages of an encoder input are missing"
    assert low <= len(own[0]) <= high, f"I3: {len(own[0])} pages for {sequence.computed} of {sequence.length} tokens"


def _check_in_flight(engine: FakeEngine) -> None:
    dispatched: Counter[int] = Counter()
    for step in engine.steps:
        for row, slot, tables in zip(step.plan.rows, step.slots, step.tables, strict=True):
            sequence = row.sequence
            dispatched[id(sequence)] += 1
            now = [table.pages[: len(tables[0])] for table in sequence.tables]
            held = sequence.slot == slot and visible(engine, now, row.start) == visible(engine, tables, row.start)
            assert held, f"I9: request {sequence.request.id} lost its slot or pages under a dispatched step"
    for sequence in engine.members:
        assert sequence.in_flight == dispatched[id(sequence)], "I19: in_flight differs from the dispatched rows"


def first_pages(engine: FakeEngine, position: int) -> list[int]:
    """For each table, the index of the first page that a token at `position` sees."""
    size, windows = engine.pool.page_size, engine.scheduler.tables.windows
    return [max(0, position - window + 1) // size if window else 0 for window in windows]


def visible(engine: FakeEngine, tables: list[list[int]], position: int) -> list[list[int]]:
    """The pages of `tables` that a token at `position` sees, and those of later positions."""
    return [table[first:] for table, first in zip(tables, first_pages(engine, position), strict=True)]


class PlanCheck:
    """Records the state before a plan is made, then checks the plan before it runs. `only` is `plan`'s argument."""

    def __init__(self, engine: FakeEngine, only: Only | None) -> None:
        self.engine = engine
        self.only = only
        self.running = list(engine.scheduler.batch.running)
        self.preemptions = {s: s.preemptions for s in engine.sequences}
        limit = engine.scheduler.rope_switch_length
        self.outgrown = {s for s in self.running if s.rope_length <= limit < s.length}
        self.indexed = set(engine.pool.index)
        snapshots = engine.scheduler.tables.snapshots
        self.saved = None if snapshots is None else set(snapshots.found)
        self.adapters = PlacementCheck(engine)
        self.drafts = DraftCheck(engine)
        self.beams = BeamCheck(engine)
        self.images = ImageCheck(engine)

    @property
    def evictions(self) -> int:
        return len(self.indexed - self.engine.pool.index.keys())

    def __call__(self, plan: Plan) -> None:
        self._check_shape(plan)
        self.adapters(plan)
        self.drafts(plan)
        self.beams(plan)
        self.images(plan)
        for row in plan.rows:
            self._check_row(row)
        self._check_encoder_rows(plan)
        self._check_writers(plan)
        self._check_preempted()
        starts = {id(row.sequence): row.start for row in plan.rows}
        for sequence in plan.admitted:
            computes = id(sequence) in starts or not sequence.first
            assert computes, f"I7: request {sequence.request.id} is admitted with nothing to compute"
            if not sequence.asleep:
                self._check_hit(sequence, starts.get(id(sequence), sequence.computed))
        if not self.engine.steps and any(self.only is None or self.only(s) for s in self.engine.live):
            assert plan.rows, "I16: nothing is in flight and nobody advances"
        if not self.only:
            self._check_order(plan)

    def _check_shape(self, plan: Plan) -> None:
        scheduler = self.engine.scheduler
        assert plan.tokens == sum(r.count for r in plan.rows) <= scheduler.token_budget, f"I11: {plan.tokens} tokens"
        assert len(plan.rows) <= scheduler.slots, f"I11: {len(plan.rows)} rows"
        assert len({r.sequence.slot for r in plan.rows}) == len(plan.rows), "I11: two rows in one slot"
        assert self.only is None or all(self.only(r.sequence) for r in plan.rows), "I11: a row that was not let through"
        assert not (plan.drain and plan.rows), "I11: a plan that asks to drain has rows"

    def _check_row(self, row: Row) -> None:
        """The row computes what comes next, on pages that contain exactly what the sequence's own tokens imply."""
        sequence, size, end = row.sequence, self.engine.pool.page_size, row.start + row.count
        assert row.count >= 1 and sequence.computed == end, f"I11: row of {row.count} at {row.start}"
        _, own = self.engine.device.tables(sequence)
        assert sequence.slot is not None and end <= len(own[0]) * size, "I11: a position without a page"
        assert row.samples in (0, 1 + len(row.draft)), f"I11: {row.samples} samples with {len(row.draft)} guesses"
        at_end = end == sequence.length - bool(row.samples)
        assert at_end == bool(row.samples), "I11: samples elsewhere than at the last tokens"
        if sequence.request.id not in self.engine.device.poisoned:
            history = self.engine.references[sequence.request.id].history(sequence.tokens, sequence.rope_length)
            for number, (table, page) in enumerate(zip(own, first_pages(self.engine, row.start), strict=True)):
                read = self.engine.device.read(table, row.start, number)[page * size :]
                true = history[page * size : row.start]
                assert read == true, f"I8: request {sequence.request.id} reads what it did not write"

    def _check_encoder_rows(self, plan: Plan) -> None:
        """Encoder inputs are read whole in the step that admits them, and keep their contents from then on."""
        encoded = [row.sequence for row in plan.encoder_rows]
        assert encoded == [s for s in plan.admitted if s.encoder_input and s.first], (
            "I7: an encoder reads what is admitted"
        )
        assert all(row.ids == row.sequence.encoder_input for row in plan.encoder_rows), "I11: an encoder input is cut"
        together = plan.encoder_tokens
        assert len(encoded) <= 1 or together <= self.engine.scheduler.token_budget, f"I11: {together} encoder tokens"
        for sequence in [row.sequence for row in plan.rows if row.sequence.members[0] not in encoded]:
            if sequence.request.id not in self.engine.device.poisoned:
                read = self.engine.device.read(self.engine.device.tables(sequence)[0], len(sequence.encoder_input))
                true = encoder_contents(sequence.encoder_input, digest_of(sequence))
                assert read == true, "I8: an encoder input was overwritten"

    def _check_writers(self, plan: Plan) -> None:
        """A page that a step writes has one holder, is not offered, and is in no other row of a dispatched step. An
        encoder input's are held by all beams of a search.
        """
        pool, size = self.engine.pool, self.engine.pool.page_size
        known = [
            (row.sequence, {page for table in visible(self.engine, tables, row.start) for page in table})
            for step in self.engine.steps
            for row, tables in zip(step.plan.rows, step.tables, strict=True)
        ]
        for row in (*plan.encoder_rows, *plan.rows):
            encoder_pages, own = self.engine.device.tables(row.sequence)
            here = slice(row.start // size, -(-(row.start + row.count) // size))
            holders = len(row.sequence.members) if row.of_encoder else 1
            for page in [page for table in ([encoder_pages] if row.of_encoder else own) for page in table[here]]:
                assert page != SINK and pool.references[page] == holders, f"I4: page {page} is written and shared"
                assert page not in pool.content, f"I4: page {page} is written and offered to others"
                others = [s for s, table in known if page in table and s is not row.sequence]
                assert not others, f"I9: page {page} is reused before the step that freed it completed"

    def _check_preempted(self) -> None:
        preempted = [s for s, count in self.preemptions.items() if s.preemptions > count]
        self.engine.events["preemptions"] += len(preempted)
        assert not (preempted and self.engine.steps), "I9: preempted while a step is in flight"
        switched = self.outgrown & {*preempted}
        self.engine.events["rope switches"] += len(switched)
        self.engine.events["rope switches of searches"] += sum(len(s.members) > 1 for s in switched)
        spared = self.only or not preempted or self.running[0] not in {*preempted} - self.outgrown
        assert spared, "I16: the oldest was preempted"
        assert self.engine.scheduler.preemptions == self.engine.events["preemptions"], "I19: preemptions miscounted"

    def _check_hit(self, sequence: Sequence, computed: int) -> None:
        """The cached prefix is as long as the index allows; entries may have been evicted meanwhile, none added."""
        size, known = self.engine.pool.page_size, len(sequence.tokens)
        assert computed % size == 0 and computed < known, f"I7: {computed} of {known} tokens cached"
        if not self._may_share(sequence):
            assert computed == 0, "I7: a hit where every position must be computed"
            return
        longest, shortest = self._prefix(sequence, self.indexed), self._prefix(sequence, set(self.engine.pool.index))
        assert shortest <= computed // size <= longest, f"I7: a hit of {computed // size}, longest {longest}"

    def _prefix(self, sequence: Sequence, indexed: set[tuple[int, bytes]]) -> int:
        """The longest prefix, in pages, whose visible pages every table has, and of which there is a snapshot where
        layers keep states; all lengths are tried.
        """
        size, keys = self.engine.pool.page_size, [self.engine.root(sequence.request)]
        for start in range(0, len(sequence.tokens) - size, size):
            seen = seen_in(sequence.request.images, start, start + size)
            keys.append(page_key(keys[-1], sequence.tokens[start : start + size], seen))

        def has(count: int) -> bool:
            firsts = enumerate(first_pages(self.engine, count * size))
            cached = all((table, key) in indexed for table, first in firsts for key in keys[1 + first : 1 + count])
            return cached and (self.saved is None or count == 0 or keys[count] in self.saved)

        return max(count for count in range(len(keys)) if has(count))

    def _check_order(self, plan: Plan) -> None:
        """No decode waits for a prefill, and no request is admitted before an older one of the same caller."""
        scheduler = self.engine.scheduler
        if not plan.drain:
            rows = {id(r.sequence): r.start for r in plan.rows}
            ready = [s for s in self.running if s in scheduler.batch.running and not s.exhausted]
            decodes = [s for s in ready if s.images_end <= s.computed == s.length - 1 - s.again]
            left_out = [s for s in decodes if id(s) not in rows and not scheduler.images.lacks(s)]
            assert not left_out, f"I17: a decode was left out: {[s.request.id for s in left_out]}"
        newest = {s.request.caller: s.order for s in sorted(plan.admitted, key=lambda s: s.order)}
        older = [s for s in scheduler.queue.waiting if s.order < newest.get(s.request.caller, s.order)]
        running, ends = scheduler.batch.running, {row.sequence: row.start + row.count for row in plan.rows}
        passed = [s for s in older if not any(self._waits_for_prefix(s, each, ends) for each in running)]
        assert all(waits_for_adapter(self.engine, s) for s in passed), "I17: admitted past an older one"
        count_passed(self.engine, plan, passed)

    def _waits_for_prefix(self, sequence: Sequence, other: Sequence, ends: dict[Sequence, int]) -> bool:
        """Whether the next page that `other` will offer is one `sequence` may start from; then others may pass it.
        Where layers keep states, the next snapshot is; `ends` are those of the plan's rows, by sequence.
        """
        size = self.engine.pool.page_size
        if self.saved is not None:
            coming = {*other.saves, ends.get(other, 0) // size * size} - {0}
            return any(self._can_start(sequence, other, end) for end in coming)
        return self._can_start(sequence, other, (other.offered_pages + 1) * size)

    def _can_start(self, sequence: Sequence, other: Sequence, end: int) -> bool:
        """Whether `sequence` can start where its first tokens, up to `end`, are those of `other`."""
        known = end <= len(other.tokens) and end < len(sequence.tokens)
        alike = sequence.request.salt == other.request.salt and digest_of(sequence) == digest_of(other)
        alike = alike and sequence.tokens[:end] == other.tokens[:end]
        alike = alike and seen_in(sequence.request.images, 0, end) == seen_in(other.request.images, 0, end)
        if self.engine.whole:
            alike = alike and whole_content(sequence.request) == whole_content(other.request)
        return self._may_share(sequence) and known and alike

    def _may_share(self, sequence: Sequence) -> bool:
        """A prompt that sees all of itself shares nothing if it is longer than a window, whose pages are not kept."""
        tables, windows = self.engine.scheduler.tables, {*self.engine.scheduler.tables.windows} - {0}
        kept = not (self.engine.whole and windows) or sequence.prompt_length <= min(windows)
        return tables.prefix_cache and not sequence.params.prompt_logprobs and kept
