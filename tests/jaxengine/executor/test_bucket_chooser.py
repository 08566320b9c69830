"""A step is padded to the smallest shape that is compiled, and what serving waits for keeps a lone request's small."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from jaxengine.architecture.adaptation import AdapterShapes, LoadedAdapter
from jaxengine.architecture.drafter import DraftModel, Eagle, Medusa
from jaxengine.architecture.picture import PictureShape, rows_of
from jaxengine.device import CPU
from jaxengine.executor.bucket_chooser import BucketChooser
from jaxengine.executor.shapes import AnyShape, Shapes
from jaxengine.model.vision.packing import EncodeShape, needed
from jaxengine.options.table import EngineOptions
from jaxengine.request.image import Image
from jaxengine.request.plan import Plan, Row
from jaxengine.startup.defaults import derive_limits
from jaxengine.step.buffer import StepShape
from jaxengine.step.see import Encode
from jaxengine.step.see import seeing as seeing_arrays
from tests.shapes import H200, LLAMA_8B, LLAVA_NEXT_7B

LIMITS = derive_limits(EngineOptions(max_total_tokens=2048), LLAMA_8B, CPU)
SHAPES = Shapes(LLAMA_8B, LIMITS, "float32", pages=64, page_size=16, top=0, cache_dtype="float32")


WITH_ADAPTERS = replace(SHAPES, adapters=AdapterShapes({}, slots=2, rank=8, dtype="float32"))


def plan(*counts: int, adapter: LoadedAdapter | None = None) -> Plan:
    """A row of so many tokens each; the last has the adapter."""
    made = Plan()
    for number, count in enumerate(counts, 1):
        sequence = Mock(adapter=adapter if number == len(counts) else None, images=[])
        made.add(Row(sequence, start=0, count=count, samples=True))
    return made


@pytest.fixture
def compiled() -> set[Hashable]:
    """What is compiled when serving begins."""
    return {name for shape in SHAPES.essential_steps() for name in SHAPES.names(shape)}


@pytest.fixture
def chooser(compiled: set[Hashable]) -> BucketChooser:
    return BucketChooser(SHAPES, compiled, None)


def test_from_the_start_a_lone_request_is_decoded_alone(chooser: BucketChooser) -> None:
    assert chooser.step(plan(1)) == SHAPES.decode(1)


def test_from_the_start_a_short_prompt_is_not_padded_to_the_longest(chooser: BucketChooser) -> None:
    assert chooser.step(plan(9)) == SHAPES.mixed(64)


def test_from_the_start_there_is_a_step_for_whatever_is_scheduled(chooser: BucketChooser) -> None:
    assert chooser.step(plan(*[1] * 32)) == SHAPES.decode(32)
    assert chooser.step(plan(256 - 31, *[1] * 31)) == SHAPES.mixed(256)


def test_the_smallest_compiled_step_that_holds_a_plan_is_taken(chooser: BucketChooser, compiled: set[Hashable]) -> None:
    assert chooser.step(plan(1, 1, 1)) == SHAPES.decode(32)
    compiled |= {*SHAPES.names(SHAPES.decode(8))}
    assert chooser.step(plan(1, 1, 1)) == SHAPES.decode(8)
    compiled |= {*SHAPES.names(SHAPES.decode(4))} - {("sample", 4, True)}
    assert chooser.step(plan(1, 1, 1)) == SHAPES.decode(8)


# --- where something learnt drafts --------------------------------------------------------------------------------

DRAFT = replace(LLAMA_8B, num_layers=2)
LIMITS_OF_DRAFTS = derive_limits(EngineOptions(max_total_tokens=2048, speculate=3, max_batch_size=64), LLAMA_8B, CPU)
DRAFTING = replace(SHAPES, limits=LIMITS_OF_DRAFTS, drafter=DraftModel(DRAFT, 3))


def test_drafts_are_proposed_by_the_smallest_that_can_for_no_more_rows_than_can_have_one() -> None:
    compiled = {name for rows in (1, 16, 64) for name in DRAFTING.names(DRAFTING.decode(rows))}
    chooser = BucketChooser(DRAFTING, compiled, None)
    assert [chooser.propose_size(rows) for rows in (1, 2, 16, 17, 64)] == [1, 16, 16, None, None]
    without = BucketChooser(DRAFTING, compiled - {("propose", 16)}, None)
    assert without.propose_size(2) is None


def test_a_draft_model_reads_as_much_as_some_mixed_step_computes() -> None:
    compiled = {name for shape in DRAFTING.essential_steps() for name in DRAFTING.names(shape)}
    chooser = BucketChooser(DRAFTING, compiled, None)
    assert {("read", 64), ("read", 256), ("propose", 1)} <= compiled
    assert [chooser.read_size(tokens) for tokens in (1, 64, 65, 256)] == [64, 64, 256, 256]


def test_what_is_read_before_guessing_has_room_for_two_tokens_a_row() -> None:
    for device in (CPU, H200):
        limits = derive_limits(EngineOptions(speculate=3, max_batch_size=100), LLAMA_8B, device)
        shapes = replace(DRAFTING, limits=limits)
        for rows in filter(shapes.proposes, limits.decode_buckets):
            tokens = shapes.draft_guessing(rows).tokens
            assert tokens >= 2 * rows and (tokens in limits.verify_buckets or tokens % 32 == 0)
            assert shapes.draft_guessing(rows).rows == rows


def test_what_eagle_reads_before_guessing_has_room_for_all_that_may_have_been_right() -> None:
    eagle = Eagle(replace(LLAMA_8B, num_layers=1), LLAMA_8B.hidden_size, LLAMA_8B.vocab_size, 3, taps=(2, 16, 29))
    shapes = replace(DRAFTING, drafter=eagle)
    most = shapes.limits.verify_buckets[-1]
    for rows in filter(shapes.proposes, shapes.limits.decode_buckets):
        tokens = shapes.draft_guessing(rows).tokens
        assert min(4 * rows, most + rows) <= tokens < most + rows + 32  # a step verifies no more than `most`


def test_heads_read_nothing() -> None:
    heads = replace(DRAFTING, drafter=Medusa(3, 1, LLAMA_8B.hidden_size, LLAMA_8B.vocab_size))
    names = {name for shape in heads.step_shapes() for name in heads.names(shape)}
    assert ("propose", 32) in names and ("propose", 64) not in names
    assert not any(name[0] == "read" for name in names)


def test_what_is_computed_again_is_padded_no_further_than_what_is_verified() -> None:
    """On a CPU, where fewer tokens take less time."""
    compiled = {name for shape in DRAFTING.step_shapes() for name in DRAFTING.names(shape)}
    again = plan(4, 1)
    again.rows[0].again = 3
    assert BucketChooser(DRAFTING, compiled, None).step(again) == DRAFTING.verify(8)
    assert BucketChooser(DRAFTING, compiled, None).step(plan(4, 1)) == DRAFTING.mixed(16)
    fewest = {name for shape in DRAFTING.essential_steps() for name in DRAFTING.names(shape)}
    assert BucketChooser(DRAFTING, fewest, None).step(again) == DRAFTING.mixed(64)


# --- where requests may have adapters -----------------------------------------------------------------------------


def adapting(shape: StepShape) -> StepShape:
    return replace(shape, adapters=True)


@pytest.fixture
def compiled_with_adapters() -> set[Hashable]:
    return {name for shape in WITH_ADAPTERS.essential_steps() for name in WITH_ADAPTERS.names(shape)}


@pytest.fixture
def adapted(compiled_with_adapters: set[Hashable]) -> BucketChooser:
    return BucketChooser(WITH_ADAPTERS, compiled_with_adapters, None)


def test_from_the_start_every_step_is_one_that_may_have_adapters(adapted: BucketChooser) -> None:
    for adapter in (None, LoadedAdapter(b"a", {})):
        assert adapted.step(plan(1, adapter=adapter)) == adapting(SHAPES.decode(1))
        assert adapted.step(plan(9, adapter=adapter)) == adapting(SHAPES.mixed(64))


def test_a_step_without_adapters_pays_for_none_once_its_program_is_there(
    adapted: BucketChooser, compiled_with_adapters: set[Hashable]
) -> None:
    compiled_with_adapters |= {*SHAPES.names(SHAPES.decode(32)), *SHAPES.names(SHAPES.decode(1))}
    mixed = plan(1, 1, 1, adapter=LoadedAdapter(b"a", {}))
    assert adapted.step(plan(1)) == SHAPES.decode(1)
    assert adapted.step(plan(1, 1, 1)) == SHAPES.decode(32)
    assert adapted.step(mixed) == adapting(SHAPES.decode(32))


def test_a_small_step_that_may_have_adapters_comes_before_a_large_one_that_may_not(
    adapted: BucketChooser, compiled_with_adapters: set[Hashable]
) -> None:
    compiled_with_adapters |= {*SHAPES.names(SHAPES.decode(32))}
    assert adapted.step(plan(1)) == adapting(SHAPES.decode(1))


def test_every_step_has_both_programs_those_with_adapters_first() -> None:
    shapes = WITH_ADAPTERS.step_shapes()
    half = len(shapes) // 2
    assert shapes[:half] == [adapting(shape) for shape in shapes[half:]]
    assert shapes[half:] == SHAPES.step_shapes()
    assert all(shape.adapters for shape in WITH_ADAPTERS.essential_steps())


@pytest.mark.parametrize("adapter", [None, LoadedAdapter(b"a", {})], ids=["without", "with"])
def test_on_a_gpu_only_what_has_run_serves(
    adapter: LoadedAdapter | None, compiled_with_adapters: set[Hashable]
) -> None:
    ran: list[AnyShape] = []
    chooser = BucketChooser(WITH_ADAPTERS, compiled_with_adapters, ran.append)
    chooser.last_first_run = float("inf")  # no first run under requests
    while chooser.warm_next():
        pass
    compiled_with_adapters |= {*SHAPES.names(SHAPES.decode(1))}
    assert chooser.step(plan(1, adapter=adapter)) == adapting(SHAPES.decode(1))
    assert chooser.warm_next() and ran[-1] == SHAPES.decode(1)
    assert chooser.step(plan(1, adapter=adapter)).adapters == (adapter is not None)


@pytest.fixture
def seeing() -> Shapes:
    limits = derive_limits(EngineOptions(max_total_tokens=2048), LLAVA_NEXT_7B, CPU)
    return Shapes(LLAVA_NEXT_7B, limits, "float32", pages=64, page_size=16, top=0, cache_dtype="float32")


def test_pictures_are_padded_to_the_fewest_tiles_that_are_compiled(seeing: Shapes) -> None:
    one, two, four, five = seeing.see_shapes()
    compiled: set[Hashable] = {("see", one), ("see", five)}
    chooser = BucketChooser(seeing, compiled, None)
    assert chooser.see(EncodeShape(576, 1, 576)) == one
    assert chooser.see(EncodeShape(2 * 576, 2, 600)) == five
    compiled.add(("see", four))
    assert chooser.see(EncodeShape(2 * 576, 2, 600)) == four
    compiled.add(("see", two))
    assert chooser.see(EncodeShape(2 * 576, 2, 600)) == two


def test_where_first_runs_cost_no_picture_waits_for_one(seeing: Shapes) -> None:
    """As for steps: the tower runs on padding before, and a shape that has not run is passed over."""
    one, *_, five = seeing.see_shapes()
    compiled: set[Hashable] = {("see", one), ("see", five)}
    ran: list[Any] = []
    chooser = BucketChooser(seeing, compiled, ran.append)
    while chooser.warm_next():
        pass
    assert ran == [one, five]
    compiled |= {("see", shape) for shape in seeing.see_shapes()}
    assert chooser.see(EncodeShape(2 * 576, 2, 600)) == five
    assert chooser.warm_next() and len(ran) == 3


def test_a_call_writes_the_rows_of_its_pictures_and_no_others(seeing: Shapes) -> None:
    """Of pictures of 5 and of 3 tiles, where there is room for 16 tiles."""
    vision = LLAVA_NEXT_7B.vision
    assert vision is not None
    shapes = [PictureShape(((24, 24),) * tiles, *sides) for tiles, sides in ((5, (672, 672)), (3, (672, 336)))]
    encodes = list[Encode]()
    for shape in shapes:
        patches = np.full((shape.patches, 588), len(encodes) + 1, np.float32)
        rows = np.arange(rows_of(vision, shape), dtype=np.int32) + 5000 * len(encodes)
        encodes.append((Image(bytes(32), 0, 1, shape, patches), rows))
    needs = needed(vision, shapes)
    largest = replace(seeing.see_shapes()[-1], patches=16 * 576, segments=16, rows=16 * 600)
    patches, fields, rows = seeing_arrays(vision, largest, "float32", 999_999, encodes)
    assert len(fields) and patches[:, 0].tolist() == [1] * 5 * 576 + [2] * 3 * 576 + [0] * 8 * 576
    assert rows[: needs.rows].tolist() == [row for _, own in encodes for row in own.tolist()]
    assert set(rows[needs.rows :].tolist()) == {999_999}
