"""The device computes what a CPU computes: every attention back end, and whole engines. `pytest -m gpu tests/gpu`."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from tests.gpu import correctness, experts, kernels
from tests.gpu.record import Record, read
from tests.gpu.scale import SMOKE

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> None:
    """Asked when a test runs: asking while tests are collected would settle JAX's devices for the whole suite."""
    if jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU")


@pytest.mark.parametrize("dtype", kernels.LIMITS)
@pytest.mark.parametrize("case", kernels.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("backend", kernels.BACKENDS)
def test_attention_equals_numpy(backend: str, case: kernels.Case, dtype: str) -> None:
    assert kernels.error(backend, case, dtype) <= kernels.LIMITS[dtype]


@pytest.mark.parametrize("name", experts.HELD)
def test_experts_equal_numpy(name: str, tmp_path: Path) -> None:
    record = Record(tmp_path / "rows")
    experts.measure(record, experts.TINY[0], SMOKE, (1, 200), name)
    assert all(row["ok"] for row in read(record.path)["correctness"])


@pytest.mark.parametrize("comparisons", [correctness.llama, correctness.others])
def test_engines_answer_as_on_a_cpu(comparisons: Callable[[], list[correctness.Comparison]], tmp_path: Path) -> None:
    record = Record(tmp_path / "rows")
    correctness.compare(record, comparisons())
    tables = read(record.path)
    assert not tables.get("errors")
    assert all(row["ok"] for row in tables["correctness"])
