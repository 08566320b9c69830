"""Models with windows in all or some layers: pages behind a window are reused, and no token changes because of it."""

from pathlib import Path

import pytest

from jaxengine.cache.limits import Limits
from jaxengine.engine.engine import Engine
from jaxengine.options.table import EngineOptions
from jaxengine.rpc.page_keys import page_key, root_key
from jaxengine.startup.defaults import derive_limits
from tests.families.zoo import ZOO
from tests.jaxengine.engines import Answer, alone, ask, load, prompt, serve, step
from tests.shapes import H200, LLAMA_8B, MISTRAL_7B
from tests.tiny import reference_logits, write_model

pytestmark = pytest.mark.slow

WINDOW, BUDGET, PAGE = 40, 32, 16
HELD = 8  # pages a request holds at most: (40 + 2 x 32) / 16, and one for the ends; its 400 tokens are 25

MIXED = {  # models of which some layers see everything, and tokens of a pool that holds no two requests of 400 tokens
    "gemma2": 224,  # 42 pages: 25 and twice 8 for a request of 400 tokens, which would be 75
    "gemma3_text": 208,  # 52 pages: 25 and three times 8
    "cohere2": 208,
}


@pytest.fixture(scope="module", params=MIXED)
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Engine]:
    """A model with the smallest pool that it may have."""
    fields = {**ZOO[request.param], "sliding_window": WINDOW, "max_position_embeddings": 512}
    directory = write_model(tmp_path_factory.mktemp("windows") / request.param, fields)
    pool = {"max_total_tokens": 400, "max_batch_total_tokens": MIXED[request.param]}
    return directory, load(directory, max_batch_size=3, max_batch_prefill_tokens=BUDGET, **pool)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {**ZOO["mistral"], "sliding_window": WINDOW, "max_position_embeddings": 512}
    return write_model(tmp_path_factory.mktemp("windows") / "mistral", fields)


@pytest.fixture(scope="module")
def engine(mistral: Path) -> Engine:
    """Its pool is as small as it may be."""
    pool = {"max_total_tokens": 400, "max_batch_total_tokens": HELD * PAGE}
    return load(mistral, max_batch_size=3, max_batch_prefill_tokens=BUDGET, **pool)


def greedy_by_reference(directory: Path, ids: list[int], answer: list[int]) -> list[int]:
    return reference_logits(directory, [*ids, *answer])[len(ids) - 1 : -1].argmax(-1).tolist()  # type: ignore[no-any-return]


def test_a_request_longer_than_the_pool_holds_few_pages_and_is_answered_right(engine: Engine, mistral: Path) -> None:
    ids, answers, most = prompt(250), {1: Answer()}, 0
    engine.submit(ask(1, ids, max_tokens=150))
    while not engine.idle:
        step(engine, answers)
        most = max(most, engine.stats().pages_used)
    assert most <= HELD
    assert answers[1].ids == greedy_by_reference(mistral, ids, answers[1].ids)


def test_those_that_preempt_each_other_are_answered_as_alone(engine: Engine) -> None:
    requests = [ask(n, prompt(20 + n, seed=n), max_tokens=90) for n in (1, 2, 3)]
    before = engine.stats().preemptions
    together = serve(engine, requests)
    assert engine.stats().preemptions > before
    assert [together[r.id].ids for r in requests] == [alone(engine, r).ids for r in requests]


def test_a_long_prompt_waits_for_pages_rather_than_be_preempted_in_its_midst(engine: Engine) -> None:
    before = engine.stats().preemptions
    serve(engine, [ask(n, prompt(250, seed=n), max_tokens=1) for n in (1, 2, 3)])
    assert engine.stats().preemptions == before


def test_a_cached_prefix_is_found_behind_the_window_too(engine: Engine, mistral: Path) -> None:
    """The pages behind the window are released, but keep their content until they are reused."""
    ids = prompt(100, seed=9)
    serve(engine, [ask(1, ids, max_tokens=1)])
    longer = [*ids, *prompt(20, seed=8)[1:]]
    answer = serve(engine, [ask(2, longer, max_tokens=10)])[2]
    assert answer.cached_tokens == 96
    assert answer.ids == greedy_by_reference(mistral, longer, answer.ids)


def test_where_some_layers_see_everything_only_those_keep_all_pages(mixed: tuple[Path, Engine]) -> None:
    directory, engine = mixed
    windows, ids, most = engine.scheduler.tables.windows, prompt(250), 0
    answers = {1: Answer()}
    engine.submit(ask(1, ids, max_tokens=150))
    while not engine.idle:
        step(engine, answers)
        most = max(most, engine.stats().pages_used)
    assert most <= 25 + HELD * (len(windows) - 1)
    assert answers[1].ids == greedy_by_reference(directory, ids, answers[1].ids)


def test_those_of_mixed_windows_are_answered_as_alone_however_they_preempt_each_other(
    mixed: tuple[Path, Engine],
) -> None:
    _, engine = mixed
    requests = [ask(n, prompt(60 + n, seed=n), max_tokens=110) for n in (1, 2, 3)]
    before = engine.stats().preemptions
    together = serve(engine, requests)
    assert engine.stats().preemptions > before
    assert [together[r.id].ids for r in requests] == [alone(engine, r).ids for r in requests]


def test_a_prefix_is_cached_where_every_layer_has_what_it_sees(mixed: tuple[Path, Engine]) -> None:
    directory, engine = mixed
    ids = prompt(100, seed=9)
    serve(engine, [ask(1, ids, max_tokens=1)])
    longer = [*ids, *prompt(20, seed=8)[1:]]
    answer = serve(engine, [ask(2, longer, max_tokens=10)])[2]
    assert answer.cached_tokens == 96
    assert answer.ids == greedy_by_reference(directory, longer, answer.ids)
    pool, tables = engine.scheduler.pool, engine.scheduler.tables
    key = page_key_of(engine, ids, 5)
    pool.forget([pool.index[len(tables.windows) - 1, key]])  # the last page, of a table with a window
    assert serve(engine, [ask(3, longer, max_tokens=1)])[3].cached_tokens == 80


def page_key_of(engine: Engine, ids: list[int], page: int) -> bytes:
    key = root_key(engine.scheduler.tables.model, b"")
    for start in range(0, (page + 1) * PAGE, PAGE):
        key = page_key(key, ids[start : start + PAGE])
    return key


def test_the_longest_request_is_not_cut_to_a_pool_that_holds_its_window() -> None:
    options = EngineOptions(max_batch_prefill_tokens=2048)
    limits = derive_limits(options, MISTRAL_7B, H200)
    assert (limits.windows, limits.max_total_tokens) == ((4096,), 32768)
    assert limits.request_pages == (4096 + 2 * 2048) // PAGE + 1
    assert derive_limits(options, LLAMA_8B, H200).windows == (0,)


def test_a_request_shorter_than_its_window_holds_what_it_has() -> None:
    assert Limits(100, (4,), (64,), windows=(4096,)).request_pages == 7
