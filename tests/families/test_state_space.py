"""Models that keep states in the whole engine: states survive chunks, neighbours, preemption and reuse of their place.

Mamba's lie in pages; in slots those of Qwen 3.5's linear attention and Granite 4's Mamba 2, and what LFM2 convolves.
"""

from collections.abc import Callable
from pathlib import Path

import httpx
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from jaxengine.request.plan import Plan
from tests.families.test_engine import reference
from tests.jaxengine.engine.test_recovery import failing
from tests.jaxengine.engines import Answers, alone, ask, load, logprob_rows, prompt, serve
from tests.servers import serving
from tests.tiny import VOCAB, tokenizer

pytestmark = pytest.mark.slow

ROWS = 8
TEXT = "The quick brown fox"
REQUESTS = [ask(n, prompt(1 + 2 * n, seed=n), max_tokens=6 + n % 5, temperature=n % 3 / 2) for n in range(33)]


NAMES = ("mamba", "falcon_mamba", "qwen3_5", "granite_hybrid", "lfm2_moe", "nemotron_h", "falcon_h1")


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def engine(name: str, zoo: Callable[[str], Path]) -> Engine:
    """Steps of 16 tokens, and every bucket: one request runs other executables than eight do."""
    return load(zoo(name), max_batch_size=ROWS, max_batch_prefill_tokens=16, max_total_tokens=96, every_bucket=True)


@pytest.fixture(scope="module")
def expected(engine: Engine) -> Answers:
    return {request.id: alone(engine, request) for request in REQUESTS}


def test_the_engine_s_logits_are_the_reference_s(name: str, engine: Engine, zoo: Callable[[str], Path]) -> None:
    ids, before = prompt(40), engine.stats().steps
    answer = alone(engine, ask(1, ids, max_tokens=8, prompt_logprobs=True, logprobs=VOCAB))
    assert engine.stats().steps >= before + 3 + 7  # three chunks, the last giving the first token
    wanted = reference(zoo(name), [*ids, *answer.ids])
    np.testing.assert_allclose(logprob_rows([*answer.prompt[1:], *answer.tokens]), wanted[:-1], atol=1e-3)
    assert answer.ids == wanted[len(ids) - 1 : -1].argmax(-1).tolist()


def test_tokens_are_the_same_alone_and_among_32_neighbours(engine: Engine, expected: Answers) -> None:
    assert ids_of(serve(engine, REQUESTS)) == ids_of(expected)


def test_a_state_that_was_left_is_never_read(engine: Engine, expected: Answers) -> None:
    """All places hold NaN, the sink too. Neither a sequence that begins nor the padding of a step reads it."""
    caches, kept = engine.runner.state.layers, len(engine.runner.shapes.spec.kept) or 2
    engine.runner.state.layers = (*caches[:-kept], *(jnp.full_like(cache, jnp.nan) for cache in caches[-kept:]))
    assert ids_of(serve(engine, REQUESTS)) == ids_of(expected)


def test_as_many_requests_run_at_once_as_there_are_states(engine: Engine) -> None:
    """A request needs a slot, or one page that never grows, so no page is kept back for growth."""
    for number in range(ROWS):
        engine.submit(ask(number, prompt(1), max_tokens=4))
    engine.step()
    stats = engine.stats()
    assert stats.running == ROWS
    if engine.runner.shapes.spec.state_space:
        assert (stats.pages_used, stats.pages_total) == (ROWS, ROWS)
    while not engine.idle:
        engine.step()


def test_tokens_survive_a_failed_step_and_preemption(
    engine: Engine, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the failure the suspects run in halves, so some are preempted once more before they are done, and begin
    again behind snapshots.
    """
    runner, before = engine.runner, engine.stats()
    monkeypatch.setattr(engine.scheduler.saving, "least_tokens", 1)

    def eleventh(plan: Plan) -> bool:
        return engine.stats().steps == before.steps + 11 and engine.stats().step_failures == before.step_failures

    failing(engine, eleventh)
    answers = serve(engine, REQUESTS)
    engine.runner = runner
    assert engine.stats().step_failures == before.step_failures + 1
    assert engine.stats().preemptions > before.preemptions
    assert ids_of(answers) == ids_of(expected)


def test_short_prompts_are_not_cached(engine: Engine) -> None:
    ids = prompt(40)
    assert [serve(engine, [ask(n, ids, max_tokens=1)])[n].cached_tokens for n in (1, 2)] == [0, 0]


def test_longer_prompts_start_from_snapshots(
    engine: Engine, name: str, zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation of two turns, two other questions behind its beginning, and all of that again at once."""
    slots = not engine.runner.shapes.spec.state_space
    monkeypatch.setattr(engine.scheduler.saving, "least_tokens", 16)
    first = prompt(40, seed=5)
    texts = [first, first + prompt(30, seed=6), *(first[:33] + prompt(30, seed=seed) for seed in (7, 8))]
    asked = [ask(n, ids, max_tokens=6, logprobs=VOCAB) for n, ids in enumerate(texts)]
    answers = [serve(engine, [request])[request.id] for request in asked]
    assert [each.cached_tokens for each in answers] == [0, slots * 32, slots * 32, slots * 32]
    together = serve(engine, asked)
    assert [together[n].cached_tokens for n in range(4)] == [slots * each for each in (32, 64, 48, 48)]
    for ids, answer in [*zip(texts, answers, strict=True), *((texts[n], together[n]) for n in range(4))]:
        wanted = reference(zoo(name), [*ids, *answer.ids])[len(ids) - 1 : -1]
        np.testing.assert_allclose(logprob_rows(answer.tokens), wanted, atol=1e-3)
        assert answer.ids == wanted.argmax(-1).tolist()


def test_a_server_answers_what_the_engine_does(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    limits = ("--max-total-tokens=64", "--max-batch-size=2", "--max-batch-prefill-tokens=16")
    with serving(tmp_path, f"--model-id={zoo('mamba')}", *limits) as server:
        server.wait_ready()
        body = {"inputs": TEXT, "parameters": {"max_new_tokens": 8, "details": True}}
        tokens = httpx.post(server.url + "/generate", json=body, timeout=60).json()["details"]["tokens"]
    ids, given = [token["id"] for token in tokens], tokenizer()(TEXT)["input_ids"]
    wanted = reference(zoo("mamba"), [*given, *ids])[len(given) - 1 : -1]
    assert ids == wanted.argmax(-1).tolist()
    np.testing.assert_allclose([token["logprob"] for token in tokens], wanted.max(-1), atol=1e-3)


def ids_of(answers: Answers) -> dict[int, list[int]]:
    return {number: answer.ids for number, answer in answers.items()}
