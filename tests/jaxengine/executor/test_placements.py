"""Adapters on their way to the device take memory that was set aside, however many a step needs at once."""

import jax
import pytest

from jaxengine.architecture.adaptation import AdapterShapes, LoadedAdapter
from jaxengine.device import CPU
from jaxengine.executor.device_state import DeviceState
from jaxengine.executor.runner import Runner
from jaxengine.model.adapters import abstract_adapters, held_bytes
from jaxengine.sharding import make_mesh
from tests.gpu.scale import TINY
from tests.random_adapters import llama_targets


def stack_bytes(slots: int) -> int:
    shapes = AdapterShapes(llama_targets(TINY), slots=slots, rank=4, dtype="bfloat16")
    stacks = abstract_adapters(TINY, shapes, make_mesh(1), CPU)
    return sum(2 * (stack.a.size + stack.b.size) for stack in stacks.values())


@pytest.mark.parametrize("slots", [1, 8])
def test_memory_is_set_aside_for_the_stacks_and_for_one_adapter_of_each_step_in_flight(slots: int) -> None:
    shapes = AdapterShapes(llama_targets(TINY), slots=slots, rank=4, dtype="bfloat16")
    held = held_bytes(abstract_adapters(TINY, shapes, make_mesh(1), CPU))
    assert held == stack_bytes(slots) + 2 * stack_bytes(1)


def test_a_step_sends_an_adapter_when_the_one_before_it_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, done = Runner.__new__(Runner), list[object]()
    runner.state = DeviceState.__new__(DeviceState)
    runner.state.adapters = {}
    monkeypatch.setattr(runner, "_place_adapter", lambda slot, _: done.append(slot))
    monkeypatch.setattr(jax, "block_until_ready", lambda _: done.append("wait"))
    runner._place_adapters([(slot, LoadedAdapter(bytes([slot]), {})) for slot in (2, 0, 1)])
    assert done == [2, "wait", 0, "wait", 1]
