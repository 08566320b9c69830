"""A CPU's products are those of the numbers they are given, and no weight is widened in memory for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops.matmul import LARGEST, matmul

IN, OUT = 192, 160
FLOAT = jnp.dtype(jnp.float32)
both_orders = pytest.mark.parametrize("axis", [0, 1])
both_types = pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
one_row_or_many = pytest.mark.parametrize("rows", [1, 2, 7])


def operands(rows: int, dtype: str, axis: int) -> tuple[jax.Array, jax.Array]:
    """x [rows, in], in f32 for an int8 weight, with an outlier; weight."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, IN), np.float32)
    x[:, 3] *= 30
    weight = rng.integers(-127, 128, (IN, OUT)) if dtype == "int8" else rng.standard_normal((IN, OUT))
    stored = jnp.asarray(weight if axis == 0 else weight.T).astype(dtype)
    return jnp.asarray(x, "float32" if dtype == "int8" else dtype), stored


def exactly(x: jax.Array, weight: jax.Array, axis: int) -> np.ndarray:
    matrix = np.asarray(weight, np.float64)
    return np.asarray(x, np.float64) @ (matrix if axis == 0 else matrix.T)  # type: ignore[no-any-return]


@both_orders
@both_types
@one_row_or_many
def test_it_is_the_product(rows: int, dtype: str, axis: int) -> None:
    """In f32; of int8, as far as 16 bits of the largest of a row tell the others."""
    x, weight = operands(rows, dtype, axis)
    rounding = np.abs(np.asarray(x, np.float64)).max(1, keepdims=True) / (2 * LARGEST if dtype == "int8" else 1e6)
    most = rounding * np.abs(np.asarray(weight, np.float64)).sum(axis)
    assert (np.abs(np.asarray(matmul(x, weight, axis, FLOAT)) - exactly(x, weight, axis)) <= most).all()


def test_an_activation_is_known_to_16_bits_of_the_largest_of_its_row() -> None:
    """Each of them, also those between two high pieces: the weight is the identity."""
    whole = np.arange(-LARGEST, LARGEST + 1, dtype=np.float32)
    x = np.concatenate([whole, np.zeros(-len(whole) % IN, np.float32)]).reshape(-1, IN)
    x = np.concatenate([x, np.full((len(x), 1), LARGEST, np.float32)], axis=1)
    identity = jnp.eye(IN + 1, dtype=jnp.int8)
    np.testing.assert_array_equal(matmul(jnp.asarray(x), identity, 0, FLOAT), x)


@both_types
def test_a_row_depends_on_no_other(dtype: str) -> None:
    x, weight = operands(7, dtype, 0)
    spoiled = x.at[2].set(jnp.nan).at[4].set(0)
    ours, alone = matmul(spoiled, weight, 0, FLOAT), matmul(x, weight, 0, FLOAT)
    assert np.isnan(ours[2]).all() and not np.asarray(ours[4]).any()
    others = np.array([0, 1, 3, 5, 6])
    np.testing.assert_array_equal(ours[others], alone[others])


def test_what_is_not_finite_is_not_hidden() -> None:
    x, weight = operands(2, "int8", 0)
    assert not np.isfinite(matmul(x.at[0, 0].set(jnp.inf), weight, 0, FLOAT)[0]).any()


@both_orders
@both_types
@one_row_or_many
def test_no_weight_is_written_wider_than_it_is_stored(rows: int, dtype: str, axis: int) -> None:
    x, weight = operands(rows, dtype, axis)
    compiled = jax.jit(matmul, static_argnums=(2, 3)).lower(x, weight, axis, FLOAT).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < weight.nbytes
