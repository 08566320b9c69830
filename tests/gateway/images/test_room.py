"""Pictures that are larger than the engine takes: which kinds make them smaller, by how much, and what is refused."""

import io
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from gateway.images.header import read_header
from gateway.images.helper import PictureHelper
from gateway.images.kinds import kind_of
from gateway.images.kinds.pixtral import grid
from gateway.images.plan import Detail
from gateway.images.processor import ImageProcessor
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.model import Cross, ModelSpec
from jaxengine.architecture.picture import check_picture, rows_of
from jaxengine.architecture.vision import Vision
from jaxengine.device import CPU
from jaxengine.options.table import EngineOptions
from jaxengine.startup.defaults import derive_limits
from tests.gateway.images.hub import HUB, hub_directory
from tests.gateway.images.models import directory
from tests.gateway.images.reference import patches, sides
from tests.gateway.images.test_engine_agrees import vision_of
from tests.shapes import LLAMA3_2_11B, LLAMA_8B
from tests.tiny_vision import SEEN
from tests.vision_references import noise

ANY_SIZE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "pixtral", "mistral3")
TILED = ("idefics2", "idefics3", "smolvlm", "internvl")
SIZES = [(400, 300), (300, 400), (399, 401), (800, 90), (60, 500), (33, 21)]  # width, height


def opened(name: str, room: Room) -> ImageProcessor:
    return ImageProcessor(kind_of(Settings.read(directory(name)), room))


@pytest.mark.parametrize("name", [name for name, (recipe, _) in HUB.items() if recipe not in ANY_SIZE])
def test_by_default_the_engine_has_room_for_what_checkpoints_cut_into_tiles(name: str, tmp_path: Path) -> None:
    target = hub_directory(name, tmp_path)
    vision = vision_of(target)
    limits, processor = derive_limits(EngineOptions(), _seeing(vision), CPU), ImageProcessor.open(target)
    for size in [(4000, 4000), (4000, 3000), (900, 4000), (700, 700)]:
        assert Room(limits.image_patches, limits.image_rows).holds(processor.plan(*size, "high"))


def _seeing(vision: Vision) -> ModelSpec:
    """Some model with these eyes."""
    if not vision.cross:
        return replace(LLAMA_8B, vision=vision)
    cross = Cross(width=vision.row_size(LLAMA3_2_11B.hidden_size))
    kinds = (each if each.cross is None else replace(each, cross=cross) for each in LLAMA3_2_11B.kinds)
    return replace(LLAMA3_2_11B, kinds=tuple(kinds), vision=vision)


def test_a_kind_is_tried_for_each_of_these() -> None:
    assert {*ANY_SIZE, *TILED} <= SEEN.keys()


@pytest.mark.parametrize("name", SEEN)
def test_with_room_for_the_largest_picture_nothing_changes(name: str) -> None:
    unbounded = sides(name).processor
    plans = {size: unbounded.plan(*size) for size in SIZES}
    largest = Room(max(each.shape.patches for each in plans.values()), max(each.rows for each in plans.values()))
    bounded = opened(name, largest)
    for size, plan in plans.items():
        assert bounded.plan(*size) == plan
        _, expected = patches(name, noise(*size), unbounded.kind.patch)
        np.testing.assert_array_equal(bounded.patches(noise(*size), plan), expected)


@pytest.mark.parametrize("limit", [Room(patches=32), Room(tokens=8), Room(patches=37, tokens=7)])
@pytest.mark.parametrize("name", ANY_SIZE)
def test_pictures_of_any_size_are_scaled_into_the_room(name: str, limit: Room) -> None:
    processor, vision = opened(name, limit), vision_of(directory(name))
    for size in SIZES[:-1]:
        plan = processor.plan(*size, "high")
        assert limit.holds(plan)
        held = min(limit.tokens, limit.patches // processor.kind.merge**2)  # type: ignore[attr-defined]
        assert 2 * plan.rows >= min(held, sides(name).processor.plan(*size).rows), "it is smaller than need be"
        assert plan == processor.plan(*size, plan.detail)  # as the helper asks again
        check_picture(vision, plan.shape)
        assert rows_of(vision, plan.shape) == plan.rows
        assert processor.patches(noise(*size), plan).shape == (plan.shape.patches, vision.patch_values)
    small = SIZES[-1]
    assert processor.plan(*small) == sides(name).processor.plan(*small)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl"])
def test_qwens_patches_are_transformers_for_a_checkpoint_with_that_bound(name: str, tmp_path: Path) -> None:
    ours, picture = opened(name, Room(patches=32)), noise(400, 300)
    least, most = ours.kind.least, 32 * ours.kind.patch**2  # type: ignore[attr-defined]
    reference = sides(name).reference.image_processor
    expected = reference([[picture]], size={"shortest_edge": least, "longest_edge": most}, return_tensors="np")
    plan = ours.plan(400, 300)
    assert [tuple(expected["image_grid_thw"][0, 1:])] == list(plan.shape.tiles)
    np.testing.assert_array_equal(ours.patches(picture, plan), expected["pixel_values"])


@pytest.mark.parametrize("name", ["pixtral", "mistral3"])
def test_pixtrals_edge_is_the_longest_that_fits(name: str) -> None:
    kind = opened(name, Room(tokens=8)).kind
    for width, height in SIZES[:-1]:
        most = kind._most(height, width, "high")  # type: ignore[attr-defined]
        longer = grid(height, width, (most[0] + 1, most[1] + 1), kind.patch * kind.merge)  # type: ignore[attr-defined]
        assert max(most) == max(kind.most) or longer[0] * longer[1] > 8  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", TILED)
def test_pictures_in_tiles_are_read_as_fewer_unless_high_detail_is_asked_for(name: str) -> None:
    limit = Room(patches=40)
    processor, details = opened(name, limit), get_args(Detail)
    plans = {detail: processor.plan(400, 300, detail) for detail in details}
    assert limit.holds(plans["auto"]) and limit.holds(plans["low"])
    assert limit.holds(plans["high"]) is (name == "internvl"), "it is for the caller to refuse"
    plan = plans["auto"]
    assert plan == processor.plan(400, 300, plan.detail)
    assert processor.patches(noise(400, 300), plan).shape[0] == plan.shape.patches


def test_internvl_has_as_many_tiles_as_fit() -> None:
    tiles = [len(opened("internvl", Room(patches=16 * held)).plan(400, 300).shape.tiles) for held in range(1, 9)]
    assert all(count <= held for held, count in enumerate(tiles, 1)) and tiles[0] == 1 and tiles[-1] == 7


@pytest.mark.parametrize("name", ["llava", "llava_next", "gemma3", "paligemma"])
def test_a_model_whose_pictures_all_have_one_size_is_refused_at_start_where_that_does_not_fit(name: str) -> None:
    plan = sides(name).processor.plan(1000, 1000)
    opened(name, Room(plan.shape.patches, plan.rows))
    for short in (Room(plan.shape.patches - 1), Room(tokens=plan.rows - 1)):
        with pytest.raises(UnusableProcessor, match=f"has {plan.shape.patches} patches .* --max-image-patches"):
            opened(name, short)


def test_a_room_below_qwens_smallest_picture_is_refused_at_start() -> None:
    with pytest.raises(UnusableProcessor, match="at least 3136 pixels, and the engine takes 2940"):
        opened("qwen2_vl", Room(patches=15))


def test_the_fingerprint_tells_rooms_apart() -> None:
    assert opened("qwen2_vl", Room(64)).fingerprint != opened("qwen2_vl", Room(65)).fingerprint


@pytest.mark.slow
async def test_the_helper_scales_as_it_was_planned() -> None:
    room, file, size = Room(patches=32), io.BytesIO(), (400, 300)
    noise(*size).save(file, "PNG")
    helper = PictureHelper(directory("qwen2_vl"), room=room)
    processor = opened("qwen2_vl", room)
    plan = processor.plan(*size)
    shape = plan.shape.patches, 2 * 3 * 14 * 14
    found = await helper.patches(file.getvalue(), read_header(file.getvalue(), 1 << 20), shape, plan.detail)
    await helper.close()
    np.testing.assert_array_equal(found, processor.patches(noise(*size), plan))
