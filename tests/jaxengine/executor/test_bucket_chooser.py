"""A step is padded to the smallest shape that is compiled, and what serving waits for keeps a lone request's small."""

from collections.abc import Hashable
from unittest.mock import Mock

import pytest

from jaxengine.device import CPU
from jaxengine.executor.bucket_chooser import BucketChooser
from jaxengine.executor.shapes import Shapes, names
from jaxengine.options.table import EngineOptions
from jaxengine.request.plan import Plan, Row
from jaxengine.startup.defaults import derive_limits
from tests.shapes import LLAMA_8B

LIMITS = derive_limits(EngineOptions(max_total_tokens=2048), LLAMA_8B, CPU)
SHAPES = Shapes(LLAMA_8B, LIMITS, "float32", pages=64, page_size=16, top=0, cache_dtype="float32")


def plan(*counts: int) -> Plan:
    """A row of so many tokens each."""
    made = Plan()
    for count in counts:
        made.add(Row(Mock(), start=0, count=count, samples=True))
    return made


@pytest.fixture
def compiled() -> set[Hashable]:
    """What is compiled when serving begins."""
    return {name for shape in SHAPES.essential_steps() for name in names(shape)}


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
    compiled |= {*names(SHAPES.decode(8))}
    assert chooser.step(plan(1, 1, 1)) == SHAPES.decode(8)
    compiled |= {*names(SHAPES.decode(4))} - {("sample", 4, True)}
    assert chooser.step(plan(1, 1, 1)) == SHAPES.decode(8)
