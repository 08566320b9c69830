"""From a model and options to an engine."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxengine.cache.limits import Limits
from jaxengine.engine.constraints import Constraints
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_process import CompileProcess
from jaxengine.executor.runner import Runner
from jaxengine.group.leader import Leader
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.table import EngineOptions
from jaxengine.request.interface import COMPILING, LOADING, OpenModel
from jaxengine.startup import agreement
from jaxengine.startup.description import describe
from jaxengine.startup.place import Place
from jaxengine.startup.scheduling import build_scheduler
from jaxengine.startup.setup import Setup
from jaxengine.startup.sizing import limits_of, size
from jaxengine.weights.loading import load_parameters


def load_engine(
    model: OpenModel,
    options: EngineOptions,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    *,
    adapters: Sequence[NamedAdapter] = (),
    limits: Limits | None = None,
    load: Callable[..., dict[str, Any]] = load_parameters,
    compile_cache: Path | None = None,
    leader: Leader | None = None,
) -> Engine:
    """Load weights, compile what serving waits for and start on the rest; `progress(what, done, total)` is told of the
    first two: of bytes that are `LOADING`, and of steps that are `COMPILING`.

    Args:
        adapters: that requests may name from the start.
        limits: instead of those that options and model imply, for measurements.
        load: called as `load_parameters` is.
        compile_cache: where executables are kept, by JAX's cache and by `ExecutableStore`. Through it another process
            compiles the rest. Both only where steps run on the host, and share their cores with compiles.
        leader: of the group, if this process leads one. Its devices are then those of all.

    Raises:
        ValueError: the options contradict the model or the devices; `DoesNotFit` among them.
    """
    setup = Setup.decide(model, options, adapters, Place.here(options.tensor_parallel, shared=leader is not None))
    setup.log_decisions()
    if leader:
        setup = setup.within(leader.agree(agreement.facts(setup), setup.device_bytes))
    limits = limits or limits_of(setup)
    limits, pages = size(setup, limits)
    if leader:
        leader.plan(agreement.plan(limits, pages, setup.pooling(model)))
    parameters = setup.load(lambda done, total: progress(LOADING, done, total), load)
    shapes = setup.shapes(limits, pages, setup.pooling(model))
    store = compile_process = None
    if compile_cache is not None and setup.device.on_host and not setup.spec.traced:
        recipe = setup.recipe(shapes)
        store = recipe.store(compile_cache, setup.mesh)
        compile_process = None if leader else CompileProcess(recipe, compile_cache)
    compiler = setup.compiler(shapes, parameters, store)
    if leader:
        leader.number(list(compiler.jobs()))
    runner = Runner(compiler, model.eos_token_ids, lambda done, total: progress(COMPILING, done, total), leader)
    runner.executables.build_rest(compile_process)
    description = describe(setup, model, limits, pages)
    constraints = Constraints.load(model.directory, description)
    scheduler = build_scheduler(setup, model, limits, pages, runner)
    registry = setup.adapters.registry(model.model_id, runner.model.adapters, options.max_cpu_loras)
    return Engine(description, runner, scheduler, constraints, registry)
