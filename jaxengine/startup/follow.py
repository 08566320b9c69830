"""From a model and a leader to an engine that repeats the leader's launches."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from jaxengine.executor.device_state import DeviceState
from jaxengine.group.follower import FollowerLink
from jaxengine.group.replay import Replay
from jaxengine.request.interface import COMPILING, LOADING, OpenModel
from jaxengine.startup import agreement
from jaxengine.startup.description import describe
from jaxengine.startup.place import Place
from jaxengine.startup.setup import Setup


def load_replay(
    model: OpenModel,
    welcome: dict[str, Any],
    leader: FollowerLink,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    compile_cache: Path | None = None,
) -> Replay:
    """What `load_engine` does with the same model in the leader's process, but for all that decides.

    Args:
        welcome: the leader's, see `agreement`.
        compile_cache: where executables are kept, as `load_engine` has it.

    Raises:
        ValueError: the leader's options contradict the model or the devices here.
    """
    options = agreement.options_of(welcome)
    place = Place.here(options.tensor_parallel, shared=True)
    setup = Setup.decide(model, options, agreement.adapters_of(welcome), place)
    setup.log_decisions()
    plan = leader.agree(agreement.facts(setup), setup.device_bytes)
    limits, pages = agreement.limits_of(plan), plan["pages"]
    shapes = setup.shapes(limits, pages, plan["pooling"])
    parameters = setup.load(lambda done, total: progress(LOADING, done, total))
    on_host = setup.device.on_host
    store = setup.recipe(shapes).store(compile_cache, setup.mesh) if compile_cache and on_host else None
    compiler = setup.compiler(shapes, parameters, store)
    names: list[Hashable] = list(compiler.jobs())
    index = {name: number for number, name in enumerate(names)}
    executables = compiler.executables(
        lambda done, total: progress(COMPILING, done, total), lambda name: leader.tell_built(index[name])
    )
    executables.build_rest()
    state = DeviceState(compiler, executables)
    return Replay(describe(setup, model, limits, pages), state, names, leader, steps_on_host=on_host)
