"""Where layers attend to images: chunks of one run, images that stay with their request, nobody stuck for ever."""

import numpy as np
import pytest

from jaxengine.architecture.picture import PictureShape
from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import PageTables
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import FinishReason
from jaxengine.request.image import Image, seen_rows
from jaxengine.request.plan import Plan
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request, Sequence
from jaxengine.scheduler.image_planner import ImagePlanner
from jaxengine.scheduler.scheduler import Scheduler
from tests.jaxengine.fake_engine import FakeEngine
from tests.jaxengine.fake_images import IMAGE, tiled_image_at
from tests.jaxengine.invariants import check_idle

TEXT = 3


def prompt(*parts: int | tuple[int, int]) -> tuple[list[int], tuple[Image, ...]]:
    """So many tokens of text, and images as (picture, tiles)."""
    ids, images = list[int](), list[Image]()
    for part in parts:
        if isinstance(part, int):
            ids += [TEXT] * part
            continue
        picture, tiles = part
        patches = np.zeros((tiles, 1), np.float32)
        images.append(Image(bytes([picture]) * 32, len(ids), 1, PictureShape(((1, 1),) * tiles, 1, 1), patches))
        ids.append(IMAGE)
    return ids, tuple(images)


class Requests:
    """A scheduler whose steps sample the same token always."""

    def __init__(self, rows: int = 8, run: int = 6, budget: int = 32, patches: int = 100) -> None:
        images = ImagePlanner(rows, "token", lambda pictures: sum(each.patches for each in pictures) <= patches, run)
        self.scheduler = Scheduler(PageTables(PagePool(200, 4), (0,), budget), 4, images=images)
        self.pool = images.pool
        self.all: list[Sequence] = []

    def add(self, *parts: int | tuple[int, int], tokens: int = 4) -> Sequence:
        ids, images = prompt(*parts)
        number = len(self.all)
        request = Request(number, ids, SamplingParams(max_tokens=tokens, seed=0), images=images, arrived=0.0)
        self.scheduler.check(request)
        self.all.append(Sequence(request, number, image_token=IMAGE, cross=True))
        self.scheduler.add(self.all[-1])
        return self.all[-1]

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        for row in plan.rows:
            seen_rows(row.sequence.images, row.start, row.count)  # raises where one has no rows
            row.sequence.tokens += [TEXT] * row.samples
        self.scheduler.complete(plan)
        for sequence in {row.sequence for row in plan.rows if row.sequence.exhausted}:
            self.scheduler.finish(sequence, FinishReason.LENGTH)
        return plan

    def serve(self, most: int = 100) -> None:
        for _ in range(most):
            if self.scheduler.idle:
                break
            self.step()
        assert self.scheduler.idle and self.pool.available == self.pool.total

    def held(self) -> list[int]:
        return sorted(image.digest[0] for image in _held(self.all))


def _held(sequences: list[Sequence]) -> list[Image]:
    return [each.image for sequence in sequences for each in sequence.images if each.encoded is not None]


def chunks(plan: Plan) -> list[tuple[int, int]]:
    return [(row.start, row.count) for row in plan.rows]


def test_a_chunk_has_tokens_of_one_run_and_of_what_is_before_the_first() -> None:
    requests = Requests()
    requests.add(3, (0, 2), (1, 1), 5, (2, 3), 4)
    assert (chunks(requests.step()), requests.held()) == ([(0, 10)], [])  # the next run's tokens need no rows of this
    assert (chunks(requests.step()), requests.held()) == ([(10, 5)], [2])
    assert (chunks(requests.step()), requests.held()) == ([(15, 1)], [2])
    requests.serve()


def test_each_token_sees_what_has_begun_of_its_run() -> None:
    requests = Requests()
    sequence = requests.add(1, (0, 2), (1, 1), 1, (2, 3), 1)
    requests.step()
    for each in sequence.images:
        each.encoded = requests.pool.hold(each.image.key) or requests.pool.place(
            each.image.key, len(each.image.shape.tiles)
        )
    rows, seen = seen_rows(sequence.images, 0, 4)
    assert (len(rows), seen.tolist()) == (3, [0, 2, 3, 3])
    rows, seen = seen_rows(sequence.images, 2, 1)
    assert (len(rows), seen.tolist()) == (3, [3])
    rows, seen = seen_rows(sequence.images, 4, 9)
    last = sequence.images[2].encoded
    assert last is not None and rows.tolist() == last.rows.tolist() and seen.tolist() == [3] * 9


def test_images_stay_for_the_answer_and_are_found_by_the_next() -> None:
    requests = Requests()
    requests.add(2, (0, 4), 2, tokens=9)
    for _ in range(5):
        requests.step()
    assert requests.held() == [0] and requests.pool.available == 4
    requests.add(2, (0, 4), 3)
    requests.serve()
    assert requests.scheduler.images.encoded == 1 and requests.scheduler.images.reused == 1


def test_a_run_comes_whole_or_not_at_all_so_no_two_wait_for_each_other() -> None:
    requests = Requests(rows=6)
    first, second = requests.add(1, (0, 3), (1, 2), 1), requests.add(4, (2, 2), (3, 3), 1)
    assert chunks(requests.step()) == [(0, 4), (0, 4)]  # up to the run, of which it holds nothing
    assert requests.held() == [0, 1] and not second.images[0].encoded
    while first.finish is FinishReason.NOT_FINISHED:
        assert second.computed == 4
        requests.step()
    requests.serve()
    assert len(second.tokens) == second.max_length


def test_a_prompt_whose_every_run_takes_most_of_the_pool_goes_on() -> None:
    requests = Requests(rows=6)
    for picture in range(0, 8, 2):
        requests.add((picture, 5), 2, (picture + 1, 6), 1)
    requests.serve()
    assert all(len(each.tokens) == each.max_length for each in requests.all)


def test_preempted_it_gives_them_back_and_takes_them_again() -> None:
    requests = Requests()
    sequence = requests.add(2, (0, 4), 2, tokens=9)
    requests.step()
    requests.scheduler._preempt(sequence)
    assert requests.held() == [] and requests.pool.available == 8
    requests.serve()
    assert len(sequence.tokens) == sequence.max_length


def test_a_run_may_take_more_than_one_step_encodes_of_others() -> None:
    requests = Requests(patches=4)
    requests.add((0, 3), (1, 3), 1)
    requests.add((2, 2), 1)
    plan = requests.step()
    assert [image.digest[0] for image, _ in plan.encodes] == [0, 1]
    requests.serve()


def test_a_beam_that_had_no_chunk_since_it_was_preempted_takes_its_images_before_it_decodes() -> None:
    """It finds all but its last token in the cache, and the budget of the step that admits it is spent."""
    engine = FakeEngine(pages=300, page_size=1, slots=4, token_budget=4, images=ImagePlanner(8, "token", bool, 4))
    beams = BeamSearch(width=3, early_stopping="never")
    searched = engine.add([1, IMAGE, 2], 12, search=beams, ignore_eos=True, images=(tiled_image_at(1, 2, 0),))
    for _ in range(6):
        engine.serve()
    engine.add([5] * 30, 2)
    engine.collect_all()
    engine.dispatch(lambda sequence: sequence is not searched)
    engine.collect_all()
    plan = engine.dispatch()
    waiting = searched.members[2]
    assert len(plan.rows) == 3 and waiting.computed == waiting.length - 1 and waiting.images[0].encoded is None
    engine.serve_until_idle()
    check_idle(engine)


def test_a_beam_that_waits_for_another_leaves_it_room_for_an_earlier_run() -> None:
    """And sees its own again, in whatever rows it is then: a prompt takes all of the budget but one beam's token."""
    images = (tiled_image_at(1, 3, 0), tiled_image_at(3, 2, 1))
    planner = ImagePlanner(4, "token", bool, 3)
    engine = FakeEngine(pages=300, page_size=4, slots=3, token_budget=3, prefix_cache=False, images=planner)
    beams = BeamSearch(width=2, early_stopping="never")
    searched = engine.add([1, IMAGE, 2, IMAGE, 2], 12, search=beams, ignore_eos=True, images=images)
    for _ in range(9):
        engine.serve()
    engine.add([5] * 16, 1)
    engine.collect_all()
    engine.dispatch(lambda sequence: sequence is not searched)
    first, second = searched.members
    while first.computed < first.length:
        engine.serve()
    assert second.computed == 1 and first.images[1].encoded is not None
    engine.serve_until_idle()
    check_idle(engine)


def test_a_run_that_no_token_could_see_is_refused() -> None:
    requests = Requests(run=6)
    requests.add((0, 3), 1, (1, 4), (2, 2))
    with pytest.raises(ValueError, match="images has 7 tiles without a token between them, more than 6"):
        requests.add((0, 3), (1, 4))
