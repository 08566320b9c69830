"""Another process compiles exactly what the engine will look for in the compile cache."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.source import open_model
from jaxengine.options.table import EngineOptions
from jaxengine.startup.build import Setup, load_engine

pytestmark = pytest.mark.slow

OPTIONS = {"max_batch_size": 2, "max_batch_prefill_tokens": 32}


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_an_engine_finds_all_that_a_recipe_made(
    tiny: Callable[[str], Path], empty_compile_cache: Path, tmp_path: Path, quantize: str | None
) -> None:
    options = EngineOptions(**OPTIONS, quantize=quantize)
    model = open_model(str(tiny("llama2_gqa")))
    engine = load_engine(model, options)
    engine.finish_compiling()
    made_by_engine = sorted(empty_compile_cache.iterdir())
    recipe = pickle.loads(pickle.dumps(Setup.decide(model, options).recipe(engine.runner.shapes)))  # noqa: S301
    for job in recipe.jobs(tmp_path).values():
        job()
    assert sorted(empty_compile_cache.iterdir()) == made_by_engine
