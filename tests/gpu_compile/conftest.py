"""Everything is compiled once, in one process beside the tests' own: two minutes on two cores."""

import pytest

from tests.gpu_compile import toolchain

FactsByProgram = dict[str, dict]


@pytest.fixture(scope="session")
def facts(tmp_path_factory: pytest.TempPathFactory) -> FactsByProgram:
    """What XLA made of every program of `programs.py`: `h200.Facts` as JSON, by name."""
    return toolchain.facts("tests.gpu_compile.programs", tmp_path_factory)
