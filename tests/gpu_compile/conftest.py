"""Everything is compiled once, in one process beside the tests' own: a minute on two cores."""

import sys
from pathlib import Path

import pytest

from tests.gpu_compile import toolchain
from tests.gpu_compile.toolchain import ToolchainMissing

FactsByProgram = dict[str, dict]


@pytest.fixture(scope="session")
def facts(tmp_path_factory: pytest.TempPathFactory) -> FactsByProgram:
    """What XLA made of every program of `programs.py`: `h200.Facts` as JSON, by name."""
    if sys.platform != "linux":
        pytest.skip(f"NVIDIA's compiler comes as wheels for Linux, this is {sys.platform}")
    result: Path = tmp_path_factory.mktemp("h200") / "facts.json"
    try:
        return toolchain.run("tests.gpu_compile.programs", result)
    except ToolchainMissing as missing:
        pytest.skip(f"NVIDIA's compiler is neither here nor to be had: {missing}")
