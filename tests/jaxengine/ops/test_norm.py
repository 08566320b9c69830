"""The kernel that adds a branch and normalises the sum, interpreted on the CPU, against the definition in f64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.architecture.model import Norm, NormKind
from jaxengine.ops import norm, triton

# Of numbers up to 10. A bf16 sum is rounded once on both sides; its norm then once or, times a weight, twice.
TOLERANCE = {"float32": 5e-6, "bfloat16": 6e-2}
TOKENS, EPS = 5, 1e-5


def defined(total: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, kind: NormKind) -> np.ndarray:
    if kind == "layer":
        total = total - total.mean(-1, keepdims=True)
    out: np.ndarray = total / np.sqrt((total**2).mean(-1, keepdims=True) + EPS)
    if weight is not None:
        out = out * (weight + 1 if kind == "rms_plus_one" else weight)
    return out if bias is None else out + bias


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("kind", "weighted", "biased"),
    [("rms", True, False), ("rms", False, False), ("rms_plus_one", True, False), ("layer", True, True)],
)
@pytest.mark.parametrize(("hidden", "ordered"), [(64, False), (72, False), (72, True)])
@pytest.mark.parametrize("run", [partial(triton.add_norm, interpret=True), norm.add_norm], ids=["kernel", "reference"])
def test_the_sum_and_its_norm_are_as_defined(
    run: partial[tuple[jax.Array, jax.Array]],
    hidden: int,
    ordered: bool,
    kind: NormKind,
    weighted: bool,
    biased: bool,
    dtype: str,
) -> None:
    random = np.random.default_rng(hidden)
    x, branch = (jnp.asarray(1 + 2 * random.normal(size=(TOKENS, hidden)), dtype) for _ in range(2))
    weight, bias = (jnp.asarray(random.normal(size=hidden), dtype) if wanted else None for wanted in (weighted, biased))
    order = random.permutation(hidden) if ordered else np.arange(hidden)
    total, normed = run(x, branch, weight, bias, jnp.asarray(order, "int32") if ordered else None, Norm(kind, EPS))
    assert total.dtype == normed.dtype == x.dtype
    wide = [None if a is None else np.asarray(a, np.float64) for a in (x + branch, weight, bias)]
    np.testing.assert_array_equal(total, x + branch)
    assert wide[0] is not None
    exact = defined(wide[0], wide[1], wide[2], kind)[:, order]
    np.testing.assert_allclose(np.asarray(normed, np.float64), exact, atol=TOLERANCE[dtype], rtol=0)
