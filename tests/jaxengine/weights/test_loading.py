"""Loading keeps little besides what the devices hold, whatever the size of the checkpoint."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxengine.weights.loading import TRANSPOSED, _laid_out
from tests.bench.loading import measure, write_llama

RUNTIME = 32e6  # bytes that JAX and its threads take on their first load


def test_host_memory_stays_below_the_largest_parameter(tmp_path: Path) -> None:
    """A quarter of a gigabyte, measured in a process of its own; `python -m tests.bench.loading` takes two."""
    found = measure(write_llama(tmp_path, 0.25), rounds=1)
    assert found["beyond"] < 1.2 * found["largest"] + RUNTIME < 0.3 * found["bytes"]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_a_transposed_array_is_the_array_transposed(order: tuple[int, ...], dtype: type) -> None:
    values = np.random.default_rng(0).normal(size=(TRANSPOSED + 3, 5, 7)).astype(np.float32).transpose(order)
    laid_out = _laid_out(values, np.dtype(dtype))
    assert laid_out.flags.c_contiguous
    np.testing.assert_array_equal(laid_out, values.astype(dtype))
