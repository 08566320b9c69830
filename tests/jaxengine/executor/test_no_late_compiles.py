"""After warm-up nothing is compiled, whatever is asked: a compile would stop every stream for seconds."""

import jax
import numpy as np
import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.request.samplers import ORDER, Samplers
from jaxengine.request.sequence import Request
from tests.jaxengine.engines import ask, prompt, serve
from tests.tiny import EOS

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(wide: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Few pages, and a count from here on: what other tests of this process compile is not the engine's doing."""
    monkeypatch.setattr(wide, "compiles_at_start", COMPILES.unexpected)
    monkeypatch.setattr(wide.scheduler.tables, "pool", PagePool(17, 16))
    return wide


def anything(number: int, chance: np.random.Generator) -> Request:
    """A request that uses a random half of all parameters."""
    ways: dict[str, object] = {
        "temperature": float(chance.choice([0, 0.5, 1.0, 2.0])),
        "top_k": int(chance.integers(1, 400)),
        "top_p": float(chance.uniform(0.1, 1)),
        "typical_p": float(chance.uniform(0.1, 1)),
        "min_p": float(chance.uniform(0, 0.5)),
        "repetition_penalty": float(chance.uniform(0.8, 1.5)),
        "frequency_penalty": float(chance.uniform(-2, 2)),
        "presence_penalty": float(chance.uniform(-2, 2)),
        "frequency_over_length": True,
        "logit_bias": {int(token): 1.0 for token in chance.integers(0, 320, chance.integers(1, 300))},
        "logprobs": int(chance.integers(0, 321)),
        "processed_logprobs": True,
        "prompt_logprobs": True,
        "stop_token_ids": tuple(chance.integers(0, 320, chance.integers(1, 64)).tolist()),
        "ignore_eos": False,
        "seed": int(chance.integers(0, 2**63)),
        "min_tokens": 2,
        "samplers": any_samplers(chance),
    }
    chosen = {name: value for name, value in ways.items() if chance.random() < 0.5}
    length = int(chance.integers(1, 64))
    return ask(number, prompt(length, seed=number), max_tokens=int(chance.integers(2, 65)), **chosen)


def any_samplers(chance: np.random.Generator) -> Samplers:
    """A random third of all samplers, in a random order."""
    ways: dict[str, object] = {
        "top_n_sigma": 1.5,
        "top_a": 0.1,
        "epsilon_cutoff": 0.001,
        "eta_cutoff": 0.001,
        "smoothing_factor": 0.2,
        "xtc_probability": 0.5,
        "dynatemp_range": 0.4,
        "skew": 0.3,
        "mirostat_tau": 4.0,
        "repetition_range": int(chance.integers(1, 64)),
        "no_repeat_ngram_size": int(chance.integers(1, 5)),
        "dry_multiplier": 0.8,
        "dry_breakers": tuple(chance.integers(0, 320, chance.integers(0, 200)).tolist()),
        "order": tuple(chance.permutation(ORDER).tolist()),
    }
    return Samplers(**{name: value for name, value in ways.items() if chance.random() < 1 / 3})  # type: ignore[arg-type]


def test_a_random_workload_compiles_nothing(engine: Engine) -> None:
    chance = np.random.default_rng(0)
    for size in (1, 2, 5, 30):
        serve(engine, [anything(number, chance) for number in range(size)])
    assert engine.stats().preemptions > 0
    assert engine.stats().cached_prompt_tokens > 0
    assert engine.stats().compiles_after_warmup == 0


def test_recovering_from_a_failed_step_compiles_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, once = engine.runner.fetch, iter([True])

    def failing(flight: object) -> object:
        if next(once, False):
            raise RuntimeError("device")
        return fetch(flight)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.runner, "fetch", failing)
    serve(engine, [ask(number, prompt(9), max_tokens=3) for number in range(4)])
    assert engine.stats().compiles_after_warmup == 0


def test_the_counter_counts_a_compile_of_anything_else(engine: Engine) -> None:
    jax.jit(lambda x: x * 3 + EOS)(np.arange(7))
    assert engine.stats().compiles_after_warmup >= 1
