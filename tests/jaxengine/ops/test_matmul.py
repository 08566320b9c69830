"""A CPU's products are those of the numbers they are given, and no weight is widened in memory for them."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device import Int8Products
from jaxengine.ops import matmul as module
from jaxengine.ops.matmul import FEW, matmul

IN, OUT = 192, 160
FLOAT = jnp.dtype(jnp.float32)
one_row_or_many = pytest.mark.parametrize("rows", [1, 2, 7])
# The weight, the activations, how int8 is multiplied, and what a product may lose of each term.
KINDS: dict[str, tuple[str, str, Int8Products, float]] = {
    "f32": ("float32", "float32", "f32", 1e-6),
    "bf16": ("bfloat16", "bfloat16", "f32", 1e-6),
    "int8": ("int8", "float32", "f32", 1e-6),
    "int8 as bf16": ("int8", "float32", "bf16", 2**-16),
    "int8 as bf16, of bf16": ("int8", "bfloat16", "bf16", 1e-6),
    "int8 as bf16, of f16": ("int8", "float16", "bf16", 1e-6),
    "int8 as integers": ("int8", "float32", "integers", 2**-16),
    "int8 as integers, of bf16": ("int8", "bfloat16", "integers", 2**-16),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of the tests has several pieces, of which the last begins before the end of the one before it."""
    monkeypatch.setattr(module, "PIECE", IN * 24)


def operands(rows: int, kind: str) -> tuple[jax.Array, jax.Array, Int8Products]:
    """x [rows, in] with an outlier; the weight; how int8 is multiplied."""
    weight_type, dtype, int8_as, _ = KINDS[kind]
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, IN), np.float32)
    x[:, 3] *= 30
    weight = rng.integers(-128, 128, (OUT, IN)) if weight_type == "int8" else rng.standard_normal((OUT, IN))
    return jnp.asarray(x, dtype), jnp.asarray(weight).astype(weight_type), int8_as


def exactly(x: Any, weight: Any) -> np.ndarray:
    return np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T  # type: ignore[no-any-return]


@each_kind
@pytest.mark.parametrize("rows", [1, 2, 7, FEW + 1])
def test_it_is_the_product(rows: int, kind: str) -> None:
    """In f32; as far as a step's activations are told apart: integers by the largest of their row."""
    x, weight, int8_as = operands(rows, kind)
    size = np.abs(np.asarray(x, np.float64))
    size = size.max(1, keepdims=True) + 0 * size if int8_as == "integers" else size
    terms = exactly(size, np.abs(np.asarray(weight, np.float64)))
    product = jax.jit(matmul, static_argnums=(2, 3))(x, weight, FLOAT, int8_as)
    assert (np.abs(np.asarray(product) - exactly(x, weight)) <= KINDS[kind][3] * terms).all()


def test_every_int8_is_itself_in_bf16() -> None:
    every = jnp.arange(-128, 128, dtype=jnp.int8)
    np.testing.assert_array_equal(np.asarray(module._as_bf16(every), np.int32), np.arange(-128, 128))


@each_kind
def test_a_row_depends_on_no_other(kind: str) -> None:
    x, weight, int8_as = operands(7, kind)
    spoiled = x.at[2].set(jnp.nan).at[4].set(0)
    ours, alone = matmul(spoiled, weight, FLOAT, int8_as), matmul(x, weight, FLOAT, int8_as)
    assert np.isnan(ours[2]).all() and not np.asarray(ours[4]).any()
    others = np.array([0, 1, 3, 5, 6])
    np.testing.assert_array_equal(ours[others], alone[others])


@each_kind
def test_what_is_not_finite_is_not_hidden(kind: str) -> None:
    x, weight, int8_as = operands(2, kind)
    assert not np.isfinite(matmul(x.at[0, 0].set(jnp.inf), weight, FLOAT, int8_as)[0]).any()


@each_kind
@one_row_or_many
def test_no_weight_is_written_wider_than_it_is_stored(rows: int, kind: str) -> None:
    x, weight, int8_as = operands(rows, kind)
    compiled = jax.jit(matmul, static_argnums=(2, 3)).lower(x, weight, FLOAT, int8_as).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < weight.nbytes + 4 * module.PIECE


@pytest.mark.parametrize("rows", [2, 7, 40])
def test_a_weight_in_f32_is_read_as_it_lies(rows: int) -> None:
    """XLA would have it on the right side, and pack it in every step."""
    x, weight, _ = operands(rows, "f32")
    compiled = jax.jit(matmul, static_argnums=2).lower(x, weight, FLOAT).compile().as_text()
    made = re.findall(r"= f32\[([\d,]+)\]\S* dot\(", compiled)
    assert made == [f"{OUT},{rows}"]
