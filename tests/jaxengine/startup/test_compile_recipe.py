"""Another process compiles exactly what the engine will look for in the compile cache."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convert.source import open_model
from jaxengine.architecture.drafter import DraftModelSource
from jaxengine.options.table import EngineOptions
from jaxengine.startup.build import load_engine
from jaxengine.startup.compile_recipe import CompileRecipe
from jaxengine.startup.defaults import derive_limits
from jaxengine.startup.setup import Setup
from jaxengine.startup.sizing import size
from jaxengine.weights.loading import abstract_parameters
from tests.eagle import Kind, TinyEagle
from tests.tiny import VOCAB

OPTIONS = {"max_batch_size": 2, "max_batch_prefill_tokens": 32}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"quantize": "int8"},
        {"enable_lora": True, "max_batch_size": 1},
        {"speculative_config": {"model": "draft", "num_speculative_tokens": 2}, "max_batch_size": 1},
        {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 2}, "max_batch_size": 1},
    ],
    ids=lambda more: "".join(more),
)
def test_an_engine_finds_all_that_a_recipe_made(
    tiny: Callable[[str], Path], empty_compile_cache: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    options = EngineOptions(**{**OPTIONS, **more})
    model = open_model(str(tiny("llama2_gqa")))
    if options.speculation and options.speculation.method == "eagle3":
        eagle = TinyEagle(Kind((0, 2), draft_vocab=100, own_head=True), 64, VOCAB).write(tmp_path / "eagle")
        model = open_model(str(tiny("llama2_gqa")), drafter=str(eagle))
    elif options.speculation:
        model = replace(model, drafter=DraftModelSource(open_model(str(tiny("llama3"))).source))
    engine = load_engine(model, options)
    engine.finish_compiling()
    made_by_engine = sorted(empty_compile_cache.iterdir())
    recipe = pickle.loads(pickle.dumps(Setup.decide(model, options).recipe(engine.runner.shapes)))  # noqa: S301
    for job in recipe.jobs(tmp_path).values():
        job()
    assert sorted(empty_compile_cache.iterdir()) == made_by_engine


def written(recipe: CompileRecipe, hash_seed: int) -> str:
    """Of the recipe as another process writes it."""
    program = "import pickle, sys; sys.stdout.write(repr(pickle.load(sys.stdin.buffer)))"
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command, pickled = [sys.executable, "-c", program], pickle.dumps(recipe)
    return subprocess.run(command, input=pickled, env=environment, capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_oss", "mixtral", "phi3_longrope", "mamba", "baichuan_13b"])
def test_every_process_writes_a_recipe_alike_and_whole(zoo: Callable[[str], Path], name: str) -> None:
    """A store knows an engine by what is written of its recipe."""
    model, options = open_model(str(zoo(name))), EngineOptions(**OPTIONS, enable_lora=True)
    setup = Setup.decide(model, options)
    recipe = setup.recipe(setup.shapes(*size(setup, derive_limits(options, setup.spec, setup.device))))
    assert written(recipe, 1) == written(recipe, 2) == repr(recipe)
    assert not re.search(r" at 0x|\.\.\.|array\(", repr(recipe))


def test_a_step_without_adapters_is_the_same_program_whether_others_may_have_some(tiny: Callable[[str], Path]) -> None:
    model = open_model(str(tiny("llama2_gqa")))

    def lowered(*, enable_lora: bool) -> list[str]:
        options = EngineOptions(**OPTIONS, enable_lora=enable_lora)
        setup = Setup.decide(model, options)
        shapes = setup.shapes(derive_limits(options, setup.spec, setup.device), 8)
        abstract = abstract_parameters(setup.spec, setup.mesh, setup.dtype, setup.device, setup.formats)
        compiler = setup.compiler(shapes, abstract)
        plain = [shape for shape in shapes.step_shapes() if not shape.adapters]
        assert len(plain) == len(shapes.step_shapes()) // (2 if enable_lora else 1)
        return [compiler.lower_backbone(shape).as_text() for shape in plain]

    assert lowered(enable_lora=True) == lowered(enable_lora=False)


def test_only_where_some_may_draft_are_states_of_guesses_told_from_others(zoo: Callable[[str], Path]) -> None:
    """A step that may have as many rows as tokens has the shape of one that verifies, whether any does."""
    model = open_model(str(zoo("lfm2")))

    def scatters(drafts: int) -> list[int]:
        options = EngineOptions(max_batch_size=16, max_batch_prefill_tokens=64, speculate=drafts)
        setup = Setup.decide(model, options)
        shapes = setup.shapes(derive_limits(options, setup.spec, setup.device), 8)
        assert shapes.mixed(16).verifies and not shapes.mixed(64).verifies
        abstract = abstract_parameters(setup.spec, setup.mesh, setup.dtype, setup.device, setup.formats)
        compiler = setup.compiler(shapes, abstract)
        lowered = [compiler.lower_backbone(shapes.mixed(tokens)) for tokens in (16, 64)]
        return [each.as_text().count("stablehlo.scatter") for each in lowered]

    (short, long), (short_with_drafts, long_with_drafts) = scatters(0), scatters(1)
    assert short < short_with_drafts and long == long_with_drafts
