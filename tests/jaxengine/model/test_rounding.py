"""Factors of a configuration count as they are written, whatever the type of what they multiply."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxengine.model.rounding import times


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("factor", [1.0, 0.22, 2304**-0.5])
def test_a_product_is_pytorch_s(factor: float, dtype: str) -> None:
    """Of Granite's residual stream, and of PaliGemma 2's rows."""
    x = np.random.default_rng(0).normal(size=(3, 500)).astype(np.float32)
    theirs = torch.tensor(x).to(getattr(torch, dtype)) * factor
    np.testing.assert_array_equal(np.asarray(times(jnp.asarray(x, dtype), factor), np.float32), theirs.float().numpy())
