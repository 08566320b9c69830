"""Whatever an engine does, a follower's devices hold the same bits behind it.

Leader and follower are two device states of one process here. What lies between them is real: frames, arrays, checks.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from convert.source import open_model
from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar
from jaxengine.group.leader import Follower
from jaxengine.group.replay import Divergence, Replay
from jaxengine.group.wire import BrokenLink, Frame, Kind, packed_arrays
from jaxengine.options.table import EngineOptions
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.interface import AdapterRefused
from jaxengine.request.samplers import Samplers
from jaxengine.startup.build import load_engine
from tests.families.seq2seq import write_seq2seq
from tests.families.zoo import write_zoo
from tests.jaxengine.drafters import Watched, eager
from tests.jaxengine.drafting import speculator
from tests.jaxengine.engines import ask, load, prompt, serve
from tests.jaxengine.group.processes import Group
from tests.jaxengine.seeing import SeenPrompt, load_seeing
from tests.tiny_adapter import write_adapter
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, noise

SMALL: dict[str, Any] = {"max_batch_size": 4, "max_batch_prefill_tokens": 32, "max_batch_total_tokens": 256}
REQUESTS = [
    ask(0, prompt(40), max_tokens=9),
    ask(1, prompt(9, seed=1), max_tokens=12, temperature=1.0, top_p=0.9, logprobs=2, prompt_logprobs=True),
    ask(2, prompt(33, seed=2), max_tokens=5, temperature=0.7, repetition_penalty=1.3, logit_bias={9: 2.0}),
    ask(3, prompt(40), max_tokens=30, temperature=1.0, samplers=Samplers(mirostat_tau=4.0, mirostat_eta=0.3)),
    ask(4, prompt(60, seed=4), max_tokens=40),
]
ARRAYS = ("layers", "slot_state", "sampler_state", "adapters", "draft_layers", "pool")


class Line:
    """The connection between the two: what the one sends, the other is given."""

    silence = 0.0

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.failures: list[str] = []
        self.repeated = 0

    def send(self, kind: Kind, payload: bytes = b"", number: int = 0) -> None:
        if kind is not Kind.BEAT:
            self.frames.append(Frame(kind, number, payload))

    def next_frame(self, timeout: float) -> Frame | None:
        return self.frames.popleft() if self.frames else None

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


@contextmanager
def followed(engine: Engine) -> Iterator[tuple[Line, Replay]]:
    """`engine` leads, from fresh device state on."""
    line, names, runner = Line(), list(engine.runner.executables._jobs), engine.runner
    leader = Group().leader()
    leader._followers[1] = Follower(line, "here")  # type: ignore[arg-type]
    leader._complete = True
    leader.number(names)
    state = copy.copy(runner.state)
    state.layers = state.slot_state = state.sampler_state = state.draft_layers = state.pool = None
    replay = Replay(engine.description, state, names, line, steps_on_host=True)  # type: ignore[arg-type]
    engine.scheduler.reset()
    runner.state.told = leader.tell
    runner.reset()
    runner.followers = leader
    try:
        yield line, replay
    finally:
        runner.followers = runner.state.told = None
        leader._followers.clear()


def assert_repeated(engine: Engine, line: Line, replay: Replay) -> None:
    count = sum(frame.kind is Kind.SAMPLED for frame in line.frames)
    while line.frames:
        assert replay.step() is None
    assert count > 0 and not line.failures
    for name in ARRAYS:
        ours, theirs = (jax.tree.leaves(getattr(state, name)) for state in (engine.runner.state, replay._state))
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one is not other and np.asarray(one).tobytes() == np.asarray(other).tobytes(), name
    assert line.repeated == engine.runner.state.launches == replay._state.launches


@pytest.fixture
def engine(tiny: Callable[[str], Path], compile_cache: None) -> Engine:
    return load(tiny("llama2_gqa"), **SMALL)


def test_texts_of_every_kind(engine: Engine) -> None:
    others = [
        ask(5, prompt(12, seed=5), max_tokens=8, beams=BeamSearch(width=2)),
        ask(6, prompt(7, seed=6), temperature=1.0, max_tokens=20, grammar=Grammar("regex", "[a-z]{10}")),
        ask(7, prompt(20, seed=7), pooling="last", max_tokens=1),
        ask(8, prompt(20, seed=8), logits="all", max_tokens=1),
    ]
    with followed(engine) as (line, replay):
        serve(engine, [*REQUESTS, *others])
        serve(engine, REQUESTS)  # of which the prompts are cached
        assert_repeated(engine, line, replay)


def test_adapters_that_come_while_the_engine_serves(
    tiny: Callable[[str], Path], tmp_path: Path, compile_cache: None
) -> None:
    paths = [write_adapter(tmp_path / str(seed), tiny("llama2_gqa"), seed=seed) / "adapter" for seed in range(3)]
    engine = load(tiny("llama2_gqa"), adapters={"a0": paths[0]}, enable_lora=True, max_loras=2, **SMALL)
    with followed(engine) as (line, replay):
        serve(engine, [ask(0, prompt(20), max_tokens=4, adapter="a0"), ask(1, prompt(9), max_tokens=4)])
        for number in (1, 2):
            engine.load_adapter(f"a{number}", str(paths[number]))
        asked = [ask(10 + each, prompt(20), max_tokens=6, adapter=f"a{each}") for each in range(3)]
        serve(engine, asked)
        assert_repeated(engine, line, replay)


@pytest.mark.parametrize("options", [{}, {"max_batch_total_tokens": None}], ids=["t5", "falcon_mamba"])
def test_models_with_an_encoder_and_with_states(tmp_path: Path, options: dict[str, Any], compile_cache: None) -> None:
    directory = write_zoo(tmp_path, "falcon_mamba") if options else write_seq2seq(tmp_path, "t5")
    engine = load(directory, **{**SMALL, **options})
    with followed(engine) as (line, replay):
        serve(engine, REQUESTS[:3])
        assert_repeated(engine, line, replay)


def test_pictures(tmp_path: Path, compile_cache: None) -> None:
    """Followers have neither them nor a pool of their own that decides anything: patches come with the launch."""
    engine = load_seeing(write_vision(tmp_path, "qwen2_5_vl"), max_batch_prefill_tokens=32)
    vision, reference = engine.runner.shapes.spec.vision, Reference(tmp_path / "qwen2_5_vl", "qwen2_5_vl")
    assert vision is not None
    prompts = [SeenPrompt.of(reference, vision, "What is {} there?", [noise(64, 40, seed)]) for seed in (0, 1, 0)]
    with followed(engine) as (line, replay):
        serve(engine, [each.ask(number, max_tokens=5) for number, each in enumerate(prompts)])
        assert engine.stats().images_encoded == 2
        assert_repeated(engine, line, replay)


def test_a_draft_model(tiny: Callable[[str], Path], compile_cache: None) -> None:
    directory, draft = tiny("llama2_gqa"), tiny("llama2_gqa")
    model = open_model(str(directory), drafter=str(draft))
    config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3}
    engine = load_engine(model, EngineOptions(speculative_config=config, **SMALL))  # type: ignore[arg-type]
    engine.finish_compiling()
    with followed(engine) as (line, replay), speculator(engine, eager(engine, Watched(engine.runner.draft))) as drafts:
        serve(engine, REQUESTS)
        assert sum(drafts.accepted) > 5
        assert_repeated(engine, line, replay)


def test_what_was_sampled_otherwise_is_found(engine: Engine) -> None:
    with followed(engine) as (line, replay):
        serve(engine, REQUESTS[:1])
        number, frame = next((i, each) for i, each in enumerate(line.frames) if each.kind is Kind.SAMPLED)
        line.frames[number] = replace(frame, payload=packed_arrays([np.full(1, 3, np.int32)]))
        with pytest.raises(Divergence, match=r"it has sampled \[\d+\], and the leader \[3\]"):
            while line.frames:
                replay.step()
        assert line.failures[0].startswith(f"launch {frame.number} failed: it has sampled")


def test_a_wrong_bit_in_what_a_launch_is_given_is_found_by_what_it_samples(engine: Engine) -> None:
    """Were it not found by the frame's checksum."""
    with followed(engine) as (line, replay):
        serve(engine, REQUESTS[:1])
        ids = np.array(REQUESTS[0].prompt[:32], np.int32).tobytes()  # of the first chunk
        number, frame = next((i, each) for i, each in enumerate(line.frames) if ids in each.payload)
        line.frames[number] = replace(frame, payload=frame.payload.replace(ids, ids[:-4] + b"\1\0\0\0"))
        with pytest.raises(Divergence):
            while line.frames:
                replay.step()


@pytest.mark.parametrize("damage", ["missing", "twice", "unknown"])
def test_a_launch_out_of_order_is_refused(engine: Engine, damage: str) -> None:
    with followed(engine) as (line, replay):
        serve(engine, REQUESTS[:1])
        launches = [each for each in line.frames if each.kind is Kind.LAUNCH]
        if damage == "missing":
            line.frames.remove(launches[2])
        if damage == "twice":
            line.frames.insert(line.frames.index(launches[2]), launches[2])
        if damage == "unknown":
            line.frames.insert(line.frames.index(launches[2]), replace(launches[2], payload=b"\xff\xff\0\0"))
        with pytest.raises(BrokenLink, match="behind launch"):
            while line.frames:
                replay.step()


def test_a_follower_takes_no_requests(engine: Engine) -> None:
    with followed(engine) as (_, replay):
        with pytest.raises(ValueError, match="follows another"):
            replay.submit(REQUESTS[0])
        for change in (lambda: replay.load_adapter("a", "b"), lambda: replay.unload_adapter("a")):
            with pytest.raises(AdapterRefused, match="follows another"):
                change()
        assert not replay.idle and not replay.is_queued(0) and replay.adapters() == ()
        assert replay.stats().steps == 0 and replay.step() is None


def test_devices_that_failed_are_not_reset_as_long_as_others_follow(engine: Engine) -> None:
    with followed(engine):
        with pytest.raises(TypeError):
            engine.runner.state.launch("write_page_table", np.zeros(3, np.int32))
        with pytest.raises(RuntimeError, match="several machines failed"):
            engine.runner.reset()
    engine.runner.state.broken = False


def test_what_fails_between_launches_costs_the_group_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = serve(engine, REQUESTS)
    with followed(engine) as (line, replay):
        completes, calls = engine.scheduler.complete, iter(range(1000))

        def failing(plan: Any) -> None:
            if next(calls) == 3:
                raise RuntimeError("a defect of ours")
            completes(plan)

        monkeypatch.setattr(engine.scheduler, "complete", failing)
        answers = serve(engine, REQUESTS)
        assert {number: each.ids for number, each in answers.items()} == {n: each.ids for n, each in expected.items()}
        assert engine.step_failures == 1
        assert_repeated(engine, line, replay)
