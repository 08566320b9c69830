"""Small arrays of a step find room apart from its temporaries."""

import random

import jax
import pytest

from jaxengine.executor.small_room import EACH, SIZES, small_room
from tests.jaxengine.engines import EngineOf
from tests.jaxengine.executor.free_pieces import FreePieces

ROWS = (1, 8, 32, 128, 256)


def test_free_pieces_lie_between_arrays_that_stay() -> None:
    device = jax.devices()[0]
    before = jax.live_arrays()  # kept, so that no new array has the identity of an old one
    known = set(map(id, before))
    kept = small_room([device])
    made = [array for array in jax.live_arrays() if id(array) not in known and not array.is_deleted()]
    assert sorted(array.nbytes for array in kept) == sorted(SIZES * EACH) == sorted(array.nbytes for array in made)
    assert all(array.devices() == {device} for array in kept)


def test_an_engine_on_a_gpu_keeps_room(engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    state = engine_of("llama2_gqa").runner.state
    assert not state.room
    monkeypatch.setattr(state, "on_host", False)
    monkeypatch.setattr(state, "room", [])
    state.launch("allocate")
    assert len(state.room) == len(SIZES) * EACH
    kept = state.room
    state.launch("allocate")
    assert state.room is kept


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("rows", ROWS)
def test_temporaries_lie_where_they_lay_in_the_step_before(rows: int, seed: int) -> None:
    """Whatever lay in the memory before, and however late an upload is freed."""
    assert [len(set(each)) for each in temporaries(rows, seed, room=True)] == [1, 1]


def test_without_room_they_move_on_and_on() -> None:
    assert any(len(set(each)) > 16 for rows in ROWS for seed in range(10) for each in temporaries(rows, seed, False))


def temporaries(rows: int, seed: int, room: bool) -> tuple[list[int], list[int]]:
    """The addresses of the temporaries of 32 steps of an 8B Llama, and of as many samplers', once it runs steadily.

    Arrays are taken and given back in the order in which XLA logged it on an H200: the upload, the hidden states, the
    packed samples and temporaries of a step; what is sampled, which stays for a step, and temporaries of the sampler.
    """
    chance, memory = random.Random(seed), FreePieces(8 << 30)
    others = [memory.take(chance.choice((256, 700, 2048, 40000))) for _ in range(50)]
    for start in chance.sample(others, 10):
        memory.give(start)
    if room:
        arrays = [memory.take(size) for size in SIZES for _ in range(2 * EACH)]
        for start in arrays[::2]:
            memory.give(start)
    outlive: list[int] = []
    late: list[int] = []
    steps: list[int] = []
    samplers: list[int] = []
    sampled = memory.take(172 * rows)
    for _ in range(64):
        for start in outlive:
            memory.give(start)
        upload, hidden = memory.take(128 * rows + 4), memory.take(8192 * rows)
        counters, packed, step = memory.take(544), memory.take(44 * rows), memory.take(303_640 * (rows + 1))
        outlive = [packed, hidden]
        for start in (counters, step, *late):
            memory.give(start)
        late = [upload] if chance.random() < 0.5 else []
        if not late:
            memory.give(upload)
        before, sampled = sampled, memory.take(172 * rows)
        sampler = memory.take(517_648 * rows)
        for start in (sampler, before):
            memory.give(start)
        steps.append(step)
        samplers.append(sampler)
    return steps[-32:], samplers[-32:]
