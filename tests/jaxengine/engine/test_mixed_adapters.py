"""Requests of many adapters share steps, slots and pages, and none changes another's tokens."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine.engine import Engine
from jaxengine.request.event import FinishReason
from jaxengine.request.interface import AdapterRefused
from jaxengine.request.plan import Plan
from tests.jaxengine.engine.test_batching import WAYS, assert_same
from tests.jaxengine.engine.test_recovery import FailingRunner
from tests.jaxengine.engines import Answer, Answers, alone, ask, check_idle, finish, load, prompt, serve, step
from tests.tiny_adapter import adapted

pytestmark = pytest.mark.slow

ADAPTERS, SLOTS, ROWS = 16, 6, 32
SHARED = prompt(40, seed=99)  # half of the prompts begin alike: a page must not be found by another adapter's request


def whose(number: int) -> str:
    """Each adapter has two requests, but one, whose turn the model itself has."""
    return f"a{number % ADAPTERS}" if number % ADAPTERS else ""


REQUESTS = [
    ask(
        number,
        [*SHARED[: 20 + number // 2], *prompt(10, seed=number)[1:]] if number % 2 else prompt(3 + number, seed=number),
        adapter=whose(number),
        **{"max_tokens": 16 + number % 7 * 4, **WAYS[number % len(WAYS)]},
    )
    for number in range(ROWS)
]


@pytest.fixture(scope="module")
def files(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories a0 to a15. Some change few matrices: of the others their slot must forget what lay there."""
    root = tmp_path_factory.mktemp("adapters")
    for number in range(ADAPTERS):
        modules = ["q_proj", "down_proj"] if number % 4 == 3 else "all-linear"
        made = adapted(tiny("llama2_gqa"), seed=number, r=(2, 4, 8)[number % 3], target_modules=modules)
        made.save_pretrained(root / f"a{number}")
    return root


@pytest.fixture(scope="module")
def mixing(tiny: Callable[[str], Path], files: Path, compile_cache: None) -> Iterator[Engine]:
    """Rows for all, chunks of prompts, slots for 6 of 16 adapters, and host memory for 10."""
    engine = load(
        tiny("llama2_gqa"),
        adapters={f"a{number}": files / f"a{number}" for number in range(ADAPTERS)},
        max_batch_size=ROWS,
        max_batch_total_tokens=1024,
        max_batch_prefill_tokens=64,
        enable_lora=True,
        max_loras=SLOTS,
        max_cpu_loras=10,
    )
    yield engine
    engine.close()


@pytest.fixture
def engine(mixing: Engine) -> Iterator[Engine]:
    """With an empty prefix cache."""
    mixing.scheduler.tables.pool = PagePool(65, 16)
    mixing.start_counting()
    yield mixing
    check_idle(mixing)
    assert mixing.stats().compiles_after_warmup == 0


@pytest.fixture(scope="module")
def expected(mixing: Engine) -> Answers:
    return {request.id: alone(mixing, request) for request in REQUESTS}


@pytest.mark.parametrize("pages", [64, 10], ids=["roomy", "tight"])
def test_tokens_are_the_same_alone_and_among_31_neighbours_with_15_adapters(
    engine: Engine, expected: Answers, pages: int
) -> None:
    engine.scheduler.tables.pool = PagePool(pages + 1, 16)
    before = engine.stats().preemptions
    answers = serve(engine, REQUESTS)
    assert engine.stats().preemptions > before or pages == 64
    for request in REQUESTS:
        assert_same(answers, expected, request)


def test_the_adapters_matter(expected: Answers, engine: Engine) -> None:
    assert len({tuple(answer.ids) for answer in expected.values()}) == ROWS
    ids = prompt(20, seed=7)
    answers = serve(engine, [ask(number, ids, max_tokens=12, adapter=whose(number)) for number in range(ADAPTERS)])
    assert len({tuple(answer.ids) for answer in answers.values()}) == ADAPTERS


def test_pages_are_shared_under_one_adapter_alone(engine: Engine) -> None:
    ids = prompt(50, seed=123)

    def hit(adapter: str) -> int:
        return serve(engine, [ask(1, ids, max_tokens=2, adapter=adapter)])[1].cached_tokens

    assert [hit(each) for each in ("a1", "a1", "a2", "", "a2", "", "a1")] == [0, 48, 0, 0, 48, 48, 48]


def test_pages_are_found_by_what_an_adapter_is_and_not_by_its_name(engine: Engine, files: Path) -> None:
    ids = prompt(50, seed=124)

    def hit() -> int:
        return serve(engine, [ask(1, ids, max_tokens=2, adapter="named")])[1].cached_tokens

    try:
        engine.load_adapter("named", str(files / "a3"))
        assert [hit(), hit()] == [0, 48]
        engine.load_adapter("named", str(files / "a4"), in_place=True)
        assert [hit(), hit()] == [0, 48]
        engine.load_adapter("named", str(files / "a3"), in_place=True)
        assert hit() == 48
    finally:
        engine.unload_adapter("named")


def test_a_running_request_keeps_the_adapter_it_began_with(engine: Engine, files: Path) -> None:
    request = ask(1, prompt(20), max_tokens=20, adapter="named")
    engine.load_adapter("named", str(files / "a5"))
    theirs = alone(engine, request).ids
    for change in ("in place", "unloaded"):
        answers = {1: Answer()}
        engine.submit(request)
        while len(answers[1].ids) < 5:
            step(engine, answers)
        if change == "in place":
            engine.load_adapter("named", str(files / "a6"), in_place=True)
        else:
            engine.unload_adapter("named")
        finish(engine, answers)
        assert answers[1].ids == theirs or change == "unloaded"
        if change == "in place":
            assert alone(engine, request).ids != theirs
            theirs = alone(engine, request).ids
    assert answers[1].ids == theirs


def test_what_is_submitted_for_a_name_that_nobody_has_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="no adapter is called 'other'"):
        engine.submit(ask(1, prompt(5), adapter="other"))


def test_an_adapter_unloaded_before_its_request_was_taken_up_ends_it(engine: Engine, files: Path) -> None:
    engine.load_adapter("named", str(files / "a5"))
    engine.submit(ask(1, prompt(5), adapter="named"))
    engine.unload_adapter("named")
    answer = finish(engine, {1: Answer()})[1]
    assert (answer.finish, answer.error) == (FinishReason.INVALID, "no adapter is called 'named'")


def test_an_adapter_whose_files_are_gone_ends_its_own_requests_only(
    engine: Engine, expected: Answers, files: Path, tmp_path: Path
) -> None:
    """It is dropped from host memory, where others of 16 have taken its place."""
    shutil.copytree(files / "a7", tmp_path / "gone")
    engine.load_adapter("gone", str(tmp_path / "gone"))
    serve(engine, REQUESTS)
    shutil.rmtree(tmp_path / "gone")
    others = REQUESTS[:8]
    answers = serve(engine, [ask(100, prompt(9), adapter="gone"), *others])
    assert answers[100].finish is FinishReason.INVALID and "cannot be read again" in answers[100].error
    assert [answers[each.id].ids for each in others] == [expected[each.id].ids for each in others]
    engine.unload_adapter("gone")


def test_a_request_cancelled_while_its_adapter_is_read_leaves_nothing(engine: Engine) -> None:
    serve(engine, REQUESTS)  # some of 16 are not in host memory any more
    dropped = [name for name, entry in engine.adapter_registry._entries.items() if entry.loaded is None]
    assert dropped
    engine.submit(ask(1, prompt(9), adapter=dropped[0]))
    engine.cancel(1)
    assert finish(engine, {1: Answer()})[1].finish is FinishReason.CANCELLED
    assert not engine.preparing


@pytest.mark.parametrize("at", ["backbone", "sample", "fetch"])
@pytest.mark.parametrize("when", [2, 9])
def test_a_step_that_fails_takes_the_stacks_along_and_costs_nobody_a_token(
    engine: Engine, expected: Answers, at: str, when: int
) -> None:
    inner, steps = engine.runner, iter(range(1, 10_000))

    def fails(_: Plan) -> bool:
        if next(steps) != when:
            return False
        for stack in inner.state.adapters.values():
            stack.a.delete()
            stack.b.delete()
        return True

    engine.runner = runner = FailingRunner(inner, fails, at)  # type: ignore[assignment]
    try:
        answers = serve(engine, REQUESTS)
    finally:
        engine.runner = inner
    assert runner.failures == 1
    assert {number: answer.ids for number, answer in answers.items()} == {
        number: answer.ids for number, answer in expected.items()
    }


def test_loading_and_unloading_under_load_leaks_nothing_and_changes_nobody_s_tokens(
    engine: Engine, expected: Answers, files: Path
) -> None:
    """200 times, while the same few requests are served again and again."""
    neighbours = [request for request in REQUESTS if request.id % 16 in (0, 3, 5)]
    held = len(engine.adapter_registry._entries)
    answers: Answers = {}
    for turn in range(200):
        name = f"fleeting {turn % 3}"
        if turn % 8 == 0:
            answers |= {request.id: Answer() for request in neighbours if request.id not in engine.requests.live}
            for request in neighbours:
                if request.id not in engine.requests.live:
                    engine.submit(request)
        engine.load_adapter(name, str(files / f"a{turn % ADAPTERS}"), in_place=turn % 2 == 0)
        number = 1000 + turn
        engine.submit(ask(number, prompt(5 + turn % 9, seed=turn), max_tokens=2, adapter=name))
        answers[number] = Answer()
        for _ in range(2):
            step(engine, answers)
        engine.unload_adapter(name)
    finish(engine, answers)
    assert {answer.finish for number, answer in answers.items() if number >= 1000} == {FinishReason.LENGTH}
    for request in neighbours:
        assert answers[request.id].ids == expected[request.id].ids
    registry = engine.adapter_registry
    assert len(registry._entries) == held and {*registry._recent} <= {*registry._entries}
    assert len(engine.scheduler.batch.adapters.slot_of) <= SLOTS


def test_an_engine_without_adapters_refuses_to_load_one(tiny: Callable[[str], Path], compile_cache: None) -> None:
    engine = load(tiny("llama2_gqa"))
    with pytest.raises(AdapterRefused, match="--enable-lora"):
        engine.load_adapter("x", "/nowhere")
    with pytest.raises(ValueError, match="--enable-lora"):
        engine.submit(ask(1, prompt(5), adapter="x"))
