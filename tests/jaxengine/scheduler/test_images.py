"""When images are encoded, how far chunks of prompts reach, and who waits for whom."""

from typing import Any

import pytest

from jaxengine.architecture.vision import Horizon
from jaxengine.request.image import Image
from jaxengine.request.plan import Plan
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.scheduler.image_planner import ImagePlanner
from tests.jaxengine.fake_engine import FakeEngine
from tests.jaxengine.fake_images import Prompt, image_at, span
from tests.jaxengine.invariants import check_idle


def engine_of(*, rows: int = 8, patches: int = 24, horizon: Horizon = "token", **sizes: Any) -> FakeEngine:
    """A pool of so many rows; an image of n rows has n + n // 2 patches, of which a step encodes so many."""
    images = ImagePlanner(rows, horizon, lambda pictures: sum(each.patches for each in pictures) <= patches)
    return FakeEngine(**{"pages": 100, "page_size": 4, "slots": 4, "token_budget": 64, "images": images, **sizes})


def prompt(*parts: int | tuple[int, int]) -> Prompt:
    """Ids, and images as (picture, rows)."""
    ids, images = list[int](), list[Image]()
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        else:
            images.append(image_at(len(ids), span(part[1], broken=False), part[0]))
            ids += span(part[1], broken=False)
    return ids, tuple(images)


def step(engine: FakeEngine) -> Plan:
    plan = engine.dispatch()
    engine.collect_all()
    return plan


def add(engine: FakeEngine, asked: Prompt, **how: Any) -> None:
    engine.add(asked[0], images=asked[1], **how)


def chunks(plan: Plan) -> list[tuple[int, int, int]]:
    """Request, start and length of each row."""
    return [(row.sequence.request.id, row.start, row.count) for row in plan.rows]


def encoded(plan: Plan) -> list[int]:
    """The pictures that it encodes."""
    return [image.digest[0] for image, _ in plan.encodes]


def test_a_chunk_ends_before_an_image_for_which_the_pool_has_no_room() -> None:
    engine = engine_of(rows=6)
    add(engine, prompt(1, (0, 4), 2, (1, 4), 3))
    plan = step(engine)
    assert (chunks(plan), encoded(plan)) == ([(0, 0, 6)], [0])
    plan = step(engine)
    assert (chunks(plan), encoded(plan)) == ([(0, 6, 5)], [1])
    engine.serve_until_idle()
    check_idle(engine)


def test_a_chunk_ends_before_an_image_that_the_step_cannot_encode_too() -> None:
    engine = engine_of(patches=6)
    add(engine, prompt(1, (0, 4), 2, (1, 2), 3))
    plan = step(engine)
    assert (chunks(plan), encoded(plan)) == ([(0, 0, 6)], [0])
    assert encoded(step(engine)) == [1]


def test_an_image_is_encoded_once_for_all_who_show_it() -> None:
    engine = engine_of()
    for first in (1, 2):
        add(engine, prompt(first, (0, 4), 3, (0, 4), 4))
    plan = step(engine)
    assert encoded(plan) == [0] and len(plan.rows) == 2
    images = engine.scheduler.images
    assert (images.encoded, images.reused) == (1, 3)
    add(engine, prompt(5, (0, 4), 1))
    assert encoded(step(engine)) == [] and images.reused == 4
    engine.serve_until_idle()
    check_idle(engine)


def test_what_a_cached_prefix_holds_is_not_encoded_again() -> None:
    engine = engine_of(rows=6, page_size=1)
    add(engine, prompt(1, (0, 6), 2), max_tokens=1)
    engine.serve_until_idle()
    add(engine, prompt((1, 6), 2), max_tokens=1)  # takes the rows
    engine.serve_until_idle()
    add(engine, prompt(1, (0, 6), 2, 3), max_tokens=1)
    plan = step(engine)
    assert (chunks(plan), encoded(plan)) == ([(2, 8, 1)], [])


def test_rows_are_given_back_once_the_step_with_the_last_place_is_complete() -> None:
    engine = engine_of(rows=6, token_budget=9)
    add(engine, prompt((0, 6), *[1] * 20))
    engine.dispatch()
    ahead = engine.dispatch()
    assert chunks(ahead) == [(0, 9, 9)] and engine.scheduler.images.pool.available == 0
    engine.collect()
    assert engine.scheduler.images.pool.available == 6


def test_no_later_image_passes_one_that_waits_for_room() -> None:
    engine = engine_of(rows=8, prefix_cache=False)
    add(engine, prompt((0, 6), 1, (1, 6), 2))
    add(engine, prompt(3, (2, 1), 4))
    first = engine.dispatch()  # the first image of the first; of the second what is before its image
    assert (chunks(first), encoded(first)) == ([(0, 0, 7), (1, 0, 1)], [0])
    ahead = engine.dispatch()  # there are two rows, but the first in the queue waits for six
    assert (chunks(ahead), encoded(ahead)) == ([], [])
    engine.collect_all()
    assert encoded(step(engine)) == [1, 2]
    engine.serve_until_idle()
    check_idle(engine)


def test_a_picture_that_later_requests_show_without_a_pause_makes_room_for_a_large_one() -> None:
    engine = engine_of(rows=8, prefix_cache=False)
    add(engine, prompt(1, (0, 4), 2), max_tokens=1)
    engine.dispatch()
    add(engine, prompt(1, (1, 6), 2), max_tokens=1)
    plans = []
    for _ in range(8):
        add(engine, prompt(1, (0, 4), 2), max_tokens=1)
        plans.append(engine.dispatch())
        engine.collect()
    assert [1] in map(encoded, plans)
    engine.serve_until_idle()
    check_idle(engine)


def test_a_failed_step_has_images_encoded_again() -> None:
    engine = engine_of()
    add(engine, prompt(1, (0, 4), 2))
    assert encoded(engine.dispatch()) == [0]
    engine.fail()
    assert encoded(engine.dispatch()) == [0]
    engine.serve_until_idle()
    check_idle(engine)


def test_an_image_that_sees_itself_is_computed_in_one_step() -> None:
    engine = engine_of(horizon="image", token_budget=12, page_size=2)
    add(engine, prompt(1, 2, 3, 4, (0, 6), 5))
    assert chunks(step(engine)) == [(0, 0, 11)]
    other = engine_of(horizon="image", token_budget=9, page_size=2, slots=2)
    add(other, prompt(1, 2, 3, 4, (0, 6), 5))
    assert [chunks(step(other)) for _ in range(2)] == [[(0, 0, 4)], [(0, 4, 7)]]
    for served in (engine, other):
        served.serve_until_idle()
        check_idle(served)


def test_a_prompt_that_sees_itself_is_computed_in_one_step_and_shared_whole() -> None:
    engine = engine_of(horizon="prompt", token_budget=16, page_size=2)
    add(engine, prompt(1, 2, (0, 4), 5, 6), max_tokens=1)
    add(engine, prompt(1, 2, (0, 4), 5, 7), max_tokens=1)
    plan = step(engine)
    assert (chunks(plan), encoded(plan)) == ([(0, 0, 8), (1, 0, 8)], [0])
    for last in (6, 7, 1):
        add(engine, prompt(1, 2, (0, 4), 5, last), max_tokens=1)
    plan = step(engine)
    assert chunks(plan) == [(2, 6, 2), (3, 6, 2), (4, 0, 8)]
    engine.serve_until_idle()
    check_idle(engine)


@pytest.mark.parametrize(
    ("horizon", "asked", "refusal"),
    [
        ("token", prompt(1, (0, 20)), "images has 30 patches together, more than one step can encode"),
        ("image", prompt(*[1] * 99, (0, 14)), "images has 14 tokens together, more than the 13 that one step"),
        ("prompt", prompt(*[1] * 9, (0, 5)), "prompt has 14 tokens together, more than the 13 that one step"),
        ("prompt", prompt(1, (0, 4), (1, 4), (2, 4)), "images has 18 patches together, more than one step can encode"),
    ],
)
def test_what_would_wait_for_ever_is_refused(horizon: Horizon, asked: Prompt, refusal: str) -> None:
    engine = engine_of(horizon=horizon, token_budget=16, patches=14 if horizon == "prompt" else 24)
    ids, images = asked
    with pytest.raises(ValueError, match=refusal):
        engine.scheduler.check(Request(1, ids, SamplingParams(max_tokens=1, seed=0), images=images))
    fewer, shown = prompt(1, (0, 4), 1)
    engine.scheduler.check(Request(1, fewer, SamplingParams(max_tokens=1, seed=0), images=shown))


def test_the_last_place_of_an_image_is_no_decode() -> None:
    """Were it one, the step would have no rows of images."""
    engine = engine_of(page_size=1)
    for _ in range(2):
        add(engine, prompt(1, (0, 2)), max_tokens=1)
        engine.serve_until_idle()
    add(engine, prompt(1, (0, 2)), max_tokens=1)
    plan = step(engine)
    assert chunks(plan) == [(2, 2, 1)] and not plan.decode_only
    check_idle(engine)
