"""What tests' engines share: without it each would trace and lower a dozen functions anew, half of a test's time."""

from typing import Any

import pytest

from jaxengine.executor.compiler import Compiler
from tests.conftest import Checkpoints
from tests.jaxengine.engines import load


def test_a_second_engine_of_a_model_lowers_nothing_but_its_allocation(
    tiny: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = _all_built(tiny)
    lowered: list[str] = []
    lower = Compiler._lower

    def noting(self: Compiler, function: Any, *others: Any, **named: Any) -> Any:
        lowered.append(function.__name__)
        return lower(self, function, *others, **named)

    monkeypatch.setattr(Compiler, "_lower", noting)
    assert _all_built(tiny) == built > 10
    assert lowered == ["allocate"]


def _all_built(tiny: Checkpoints) -> int:
    engine = load(tiny("llama2_gqa"), every_bucket=True)
    try:
        executables = engine.runner.executables
        return len([executables[name] for name in executables.built])
    finally:
        engine.close()


def test_programs_have_the_names_that_traces_show(tiny: Checkpoints) -> None:
    engine = load(tiny("llama2_gqa"))
    try:
        executables = engine.runner.executables
        programs = {executables[name].as_text().split(",")[0] for name in executables.built}
    finally:
        engine.close()
    assert {f"HloModule jit_{name}" for name in ("backbone", "sample", "sample_greedy", "score")} <= programs
