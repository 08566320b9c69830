"""Bugs about images to plant in the scheduler, the pool of rows or the keys of pages, as those of `mutants`."""

from collections.abc import Callable
from collections.abc import Sequence as Ids

import numpy as np
import pytest

from jaxengine.cache import page_tables as module
from jaxengine.cache.image_pool import ImagePool, Key
from jaxengine.request.image import FOREVER, EncodedImage, PlacedImage, seen_rows
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.image_planner import ImagePlanner
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.step import upload
from jaxengine.step.upload import SlotFields

Patch = pytest.MonkeyPatch


def rows_are_given_away_while_a_step_reads_them(patch: Patch) -> None:
    """As soon as a plan has an image's last place, not when the step is complete."""
    plan = Scheduler.plan

    def early(scheduler: Scheduler, *only: Callable[[Sequence], bool]) -> Plan:
        for sequence in scheduler.batch.running:
            scheduler.images.passed(sequence, sequence.computed)
        return plan(scheduler, *only)

    patch.setattr(Scheduler, "plan", early)


def an_image_is_held_until_its_request_ends(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "passed", lambda planner, sequence, position: None)


def a_preempted_sequence_keeps_its_images(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "release", lambda planner, sequence: None)


def rows_that_are_held_are_taken(patch: Patch) -> None:
    patch.setattr(ImagePool, "available", property(lambda pool: pool.total))

    def place(pool: ImagePool, key: Key, count: int) -> EncodedImage:
        while len(pool.blank) < count:
            pool._evict(next(iter(pool.images)))
        rows = [pool.blank.pop() for _ in range(count)]
        pool.images[key] = EncodedImage(np.array(rows, np.int32))
        return pool.images[key]

    patch.setattr(ImagePool, "place", place)


def an_image_is_encoded_for_everybody_anew(patch: Patch) -> None:
    patch.setattr(ImagePool, "hold", lambda pool, key: None)


def an_image_is_taken_for_encoded(patch: Patch) -> None:
    hold = ImagePlanner._hold

    def forget(planner: ImagePlanner, sequence: Sequence, start: int, count: int, plan: Plan) -> None:
        before = len(plan.encodes)
        hold(planner, sequence, start, count, plan)
        del plan.encodes[max(before, 1) :]

    patch.setattr(ImagePlanner, "_hold", forget)


def the_pool_outlives_a_failed_step(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "reset", lambda planner: None)


def what_came_out_broken_is_found_by_others(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "forget", lambda planner, sequence: None)


def a_chunk_cuts_what_is_whole(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "_uncut", lambda planner, sequence, start, end, limit: end)


def a_chunk_reaches_into_an_image_without_room(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "_first_without_room", lambda planner, sequence, start, end, plan: None)


def the_encoder_is_given_more_than_fits(patch: Patch) -> None:
    first = ImagePlanner._first_without_room

    def greedy(planner: ImagePlanner, sequence: Sequence, start: int, end: int, plan: Plan) -> PlacedImage | None:
        fits, planner.fits = planner.fits, lambda _: True
        try:
            return first(planner, sequence, start, end, plan)
        finally:
            planner.fits = fits

    patch.setattr(ImagePlanner, "_first_without_room", greedy)


def a_small_image_passes_a_large_one_that_waits(patch: Patch) -> None:
    patch.setattr(Plan, "images_wait", property(lambda _: False, lambda _, value: None), raising=False)


def a_step_that_reads_an_image_s_last_place_is_taken_for_a_decode(patch: Patch) -> None:
    patch.setattr(Row, "sees", property(lambda _: False))


def the_images_of_a_page_are_not_in_its_key(patch: Patch) -> None:
    patch.setattr(module, "seen_in", lambda images, start, end: b"")


def a_part_of_a_prompt_is_shared_where_all_of_it_counts(patch: Patch) -> None:
    patch.setattr(module, "whole_key", lambda root, prompt, images: root)


def the_images_of_a_run_are_given_back_behind_their_tokens(patch: Patch) -> None:
    """As where rows stand in for tokens."""

    def passed(planner: ImagePlanner, sequence: Sequence, position: int) -> None:
        planner._release(each for each in sequence.images if each.image.end <= position)

    patch.setattr(ImagePlanner, "passed", passed)


def a_chunk_goes_on_into_the_next_run(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "_run_end", lambda planner, sequence, start: FOREVER)


def a_chunk_is_lengthened_into_the_next_run(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "may_lengthen", lambda planner, row: True)


def a_beam_is_taken_to_hold_what_its_prompt_does(patch: Patch) -> None:
    patch.setattr(ImagePlanner, "lacks", lambda planner, sequence: False)


def a_slot_sees_what_its_last_sequence_saw(patch: Patch) -> None:
    fill = SlotFields.fill

    def keep(fields: SlotFields, sequence: Sequence) -> None:
        seen = fields.seen.copy()
        fill(fields, sequence)
        fields.seen = seen

    patch.setattr(SlotFields, "fill", keep)


def a_token_sees_an_image_of_its_run_that_is_behind_it(patch: Patch) -> None:
    def whole(images: Ids[PlacedImage], start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows, seen = seen_rows(images, start, count)
        return rows, np.where(seen > 0, len(rows), 0).astype(np.int32)

    patch.setattr(upload, "seen_rows", whole)


# Where layers attend to images.
OF_RUNS: dict[Callable[[Patch], None], str] = {
    the_images_of_a_run_are_given_back_behind_their_tokens: "I30",
    a_chunk_goes_on_into_the_next_run: "I30",
    a_chunk_is_lengthened_into_the_next_run: "I30",
    a_beam_is_taken_to_hold_what_its_prompt_does: "has no rows",
    a_slot_sees_what_its_last_sequence_saw: "I5",
    a_token_sees_an_image_of_its_run_that_is_behind_it: "I5",
}
CAUGHT_BY: dict[Callable[[Patch], None], str] = {
    rows_are_given_away_while_a_step_reads_them: "I30",
    an_image_is_held_until_its_request_ends: "I30",
    a_preempted_sequence_keeps_its_images: "I30",
    rows_that_are_held_are_taken: "I30",
    an_image_is_encoded_for_everybody_anew: "I30",
    an_image_is_taken_for_encoded: "I30",
    the_pool_outlives_a_failed_step: "I30",
    what_came_out_broken_is_found_by_others: "I30",
    a_chunk_cuts_what_is_whole: "I30",
    a_chunk_reaches_into_an_image_without_room: "an image of",  # rows, more than are available
    the_encoder_is_given_more_than_fits: "I30",
    a_small_image_passes_a_large_one_that_waits: "I30",
    a_step_that_reads_an_image_s_last_place_is_taken_for_a_decode: "I30",
    the_images_of_a_page_are_not_in_its_key: "I5",
    a_part_of_a_prompt_is_shared_where_all_of_it_counts: "I5",
    **OF_RUNS,
}
