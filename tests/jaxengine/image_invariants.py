"""I30, of images: one is in the pool, encoded, before a step reads it, once while it can be found, and stays there as
long as somebody is to read it; nobody holds one without need; no chunk cuts what must be whole; and no small image
passes a large one that waits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from jaxengine.request.image import EncodedImage, seen_rows
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from tests.jaxengine.fake_images import IMAGE, attended, row_value

if TYPE_CHECKING:
    from tests.jaxengine.fake_engine import FakeEngine


def check_images(engine: FakeEngine) -> None:
    pool = engine.scheduler.images.pool
    held = Counter(each.encoded for s in engine.members for each in s.images if each.encoded is not None)
    known = {*pool.images.values(), *held}
    assert all(each.holders == held[each] for each in known), "I30: images are held by others than say so"
    rows = [row for each in known for row in each.rows.tolist()]
    assert sorted([*pool.blank, *rows]) == list(range(pool.total)), "I30: a row is lost, or of two images"
    assert all(not each.found for each in held if each not in pool.images.values()), (
        "I30: one that is held is not found"
    )
    for (digest, _), each in pool.images.items():
        true = [row_value(digest, row) for row in range(len(each.rows))]
        good = engine.device.rows_of(each) == true or (each.holders and engine.device.is_bad(each))
        assert good, "I30: other rows than the image's"
    for sequence in engine.members:
        _check_held(sequence)


def _check_held(sequence: Sequence) -> None:
    images = [each.image for each in sequence.images if each.encoded is not None]
    assert sequence.slot is not None or not images, "I30: a sequence without a slot holds an image"
    needless = any(each.until <= sequence.computed for each in sequence.images if each.encoded is not None)
    assert sequence.in_flight or not needless, "I30: an image is held for nothing"


def rows_read(row: Row, run: int) -> list[int]:
    """The rows of the pool that stand in for tokens of `row`; or that they see, where layers attend to `run` rows."""
    if run:
        found: list[int] = seen_rows(row.sequence.images, row.start, row.count)[0].tolist()
        return found
    return [each for each in row.image_rows.tolist() if each >= 0]


def _known(row: Row) -> list[int]:
    """The ids of `row` that the host knows."""
    return [] if row.of_encoder else row.sequence.tokens[row.start : row.start + row.count]


class ImageCheck:
    """Records what is in the pool before a plan is made, then checks the plan."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.planner = engine.scheduler.images
        pool = self.planner.pool
        self.found = dict(pool.images)
        self.blank = len(pool.blank)
        self.read = {row for step in engine.steps for row in step.image_rows}
        self.held = [(each, each.encoded) for s in engine.members for each in s.images if each.encoded is not None]
        self.behind = [s for s in engine.scheduler.batch.running if self._next_missing(s)]

    def __call__(self, plan: Plan) -> None:
        self._check_encodes(plan)
        for row in plan.rows:
            self._check_row(row)
            self._check_uncut(row, plan)
        assert not (plan.decode_only and any(IMAGE in _known(row) for row in plan.rows)), (
            "I30: a step that decodes reads images"
        )
        self._check_passed(plan)
        self._note(plan)

    def _check_encodes(self, plan: Plan) -> None:
        keys = [image.key for image, _ in plan.encodes]
        assert len({*keys}) == len(keys), "I30: an image is encoded twice in one step"
        assert not keys or self.planner.fits([image.shape for image, _ in plan.encodes]) or self._of_one_run(plan), (
            "I30: more than fits is encoded"
        )
        written = [row for _, rows in plan.encodes for row in rows.tolist()]
        held = {row for each, encoded in self.held if each.encoded is encoded for row in encoded.rows.tolist()}
        assert not {*written} & (held | self.read), "I30: rows are written that somebody is to read"
        known = [self.found[key] for key in keys if key in self.found]
        assert not any(each.holders for each in known), "I30: an image is encoded that somebody holds"
        assert not known or len(written) > self.blank, "I30: an image is encoded that was there"

    def _of_one_run(self, plan: Plan) -> bool:
        """Whether all that is encoded is one request's: a chunk of it has tokens of one run."""
        encoded = {image for image, _ in plan.encodes}
        return self.planner.run > 0 and any(encoded <= {*row.sequence.request.images} for row in plan.rows)

    def _check_row(self, row: Row) -> None:
        if self.planner.run:
            self._check_run(row)
            return
        rows = row.image_rows
        places = [i for i, token in enumerate(_known(row)) if token == IMAGE]
        assert np.flatnonzero(rows >= 0).tolist() == places, "I30: a place of an image without a row of the pool"

    def _check_run(self, row: Row) -> None:
        rows, seen = seen_rows(row.sequence.images, row.start, row.count)
        for position, count in enumerate(seen.tolist(), row.start):
            needed = attended(row.sequence.request.images, position)
            assert len(needed) == count <= len(rows), f"I30: {count} rows are seen at {position}, not {len(needed)}"
        begun = {each.until for each in row.sequence.images}  # where the second run begins, and the others
        assert not any(row.start < start < row.start + row.count for start in begun), "I30: tokens of two runs"

    def _check_uncut(self, row: Row, plan: Plan) -> None:
        start, end, sequence = row.start, row.start + row.count, row.sequence
        whole = [(each.image.offset, each.image.end) for each in sequence.images] * (self.planner.horizon == "image")
        whole += [(0, sequence.prompt_length)] * (self.planner.horizon == "prompt")
        for first, last in whole:
            assert not first < end < last, f"I30: tokens {first} to {last} are cut at {end}"
            assert not first < start < last or sequence in plan.admitted or self._was_admitted(sequence, start), (
                f"I30: tokens {first} to {last} are cut at {start}"
            )

    def _was_admitted(self, sequence: Sequence, start: int) -> bool:
        """Whether `sequence` has had no row yet, behind what it found."""
        return start == self.engine.started.get(sequence)

    def _check_passed(self, plan: Plan) -> None:
        """Those who could not go on for want of room are not passed by later ones that take some."""
        rows, budget = {id(row.sequence) for row in plan.rows}, self.engine.scheduler.token_budget
        stuck = [s for s in self.behind if id(s) not in rows and s.slot is not None and plan.tokens < budget]
        if not stuck or plan.drain or self.planner.horizon != "token":
            return
        first = min(stuck, key=lambda s: s.order)
        self.engine.events["waits for room"] += 1
        running = self.engine.scheduler.batch.running
        before = running[: running.index(first)]  # of a search's beams, some may be before others
        older = {each.image.key for s in before for each in s.images if each.encoded}
        assert all(image.key in older for image, _ in plan.encodes), "I30: an image has passed one that waits for room"

    def _next_missing(self, sequence: Sequence) -> bool:
        """Whether the next token of `sequence` is one of an image that it does not hold."""
        at, missing = sequence.computed, [each for each in sequence.images if each.encoded is None]
        return at < sequence.length and any(each.first <= at < each.until for each in missing)

    def _note(self, plan: Plan) -> None:
        events = self.engine.events
        events["encoded"] += len(plan.encodes)
        events["evicted images"] += len(self.found.keys() - self.planner.pool.images.keys())
        for row in plan.rows:
            images, end = row.sequence.images, row.start + row.count
            events["images cut"] += any(each.image.offset < end < each.image.end for each in images)
            events["begun inside an image"] += any(each.image.offset < row.start < each.image.end for each in images)
            ends = not row.samples and any(each.image.offset == end and each.encoded is None for each in images)
            events["ends before an image"] += ends
            cut = any(each.first < end < each.image.offset for each in row.sequence.images)
            events["runs cut"] += cut and self.planner.run > 0
            events["images read again"] += row.sees and row.sequence.preemptions > 0
            events["images of searches"] += row.sees and row.sequence.beams is not None


def holders_left(engine: FakeEngine) -> list[EncodedImage]:
    """Images that somebody holds; none when all requests have ended."""
    return [each for each in engine.scheduler.images.pool.images.values() if each.holders]
