"""A weight stands for the same matrix whatever its format and its order in memory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import Activated
from jaxengine.ops.experts import ExpertMLPs
from jaxengine.ops.weight import Weight, WeightLayout

FOUR_BITS = WeightFormat("four bits", "uint8", zeros="uint8", group=8)
TABLE = Parameter((3, 5, 4, 16), (None, None, "kv_heads", None), inputs=2)  # 5 x 3 channels of 8 groups


def grouped(layout: WeightLayout, seed: int = 0) -> tuple[Weight, np.ndarray]:
    """A random weight of `TABLE`'s shape, and what it stands for in the table's order."""
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 16, TABLE.shape).astype(np.uint8)
    shape = TABLE.component("scales", FOUR_BITS).shape
    scales, zeros = draw.uniform(0.1, 1, shape).astype(np.float32), draw.integers(0, 16, shape).astype(np.uint8)
    whole = np.zeros(TABLE.shape, np.float32)
    for a, b, c, d in np.ndindex(TABLE.shape):
        group = (c * 16 + d) // 8
        whole[a, b, c, d] = (float(values[a, b, c, d]) - float(zeros[a, b, group])) * scales[a, b, group]
    placed = jnp.asarray(values)
    return Weight(placed, layout, jnp.asarray(scales), jnp.asarray(zeros)), whole


@pytest.mark.parametrize("stacked", [0, 1])
def test_each_group_of_inputs_has_its_scale_and_its_zero(stacked: int) -> None:
    weight, whole = grouped(WeightLayout(2, stacked, format=FOUR_BITS))
    np.testing.assert_allclose(weight.dense("float32"), whole, rtol=1e-6)


def test_scales_and_zeros_have_groups_in_place_of_inputs() -> None:
    assert TABLE.component("values", FOUR_BITS) == TABLE
    assert TABLE.component("zeros", FOUR_BITS) == Parameter((3, 5, 8), (None, None, "kv_heads"))
    assert TABLE.component("scales", WeightFormat("int8", "int8")) == Parameter((3, 5), (None, None))


def test_a_sorted_weight_stands_for_the_matrix_in_the_model_s_order() -> None:
    weight, whole = grouped(WeightLayout(2, format=replace(FOUR_BITS, ordered=True)))
    order = np.random.default_rng(2).permutation(64)
    expected = np.zeros((3, 5, 64), np.float32)
    expected[..., order] = whole.reshape(3, 5, 64)
    dense = replace(weight, order=jnp.asarray(order)).dense("float32")
    np.testing.assert_allclose(dense, expected.reshape(TABLE.shape), rtol=1e-6)


@pytest.mark.parametrize("flat", [False, True])
def test_a_product_with_groups_is_the_product_with_what_they_stand_for(flat: bool) -> None:
    weight, whole = grouped(WeightLayout(2, 0, flat, FOUR_BITS))
    x = np.random.default_rng(1).normal(size=(7, 4, 16)).astype(np.float32)
    y = Linear(weight, None)(jnp.asarray(x))
    np.testing.assert_allclose(y, np.einsum("tcd,abcd->tab", x, whole), rtol=1e-4, atol=1e-4)


def test_a_matrix_of_a_stack_is_a_weight_too() -> None:
    weight, whole = grouped(WeightLayout(2, 1, format=FOUR_BITS))
    one = weight.matrix(jnp.int32(2))
    np.testing.assert_allclose(one.dense("float32"), whole[2], rtol=1e-6)


def test_floats_are_one_leaf_and_8_bits_two() -> None:
    """Each leaf of a step's arguments costs its call time."""
    values, scales = jnp.ones((4, 8)), jnp.ones(4)
    assert len(jax.tree.leaves(Weight(values, WeightLayout()))) == 1
    assert len(jax.tree.leaves(Weight(values, WeightLayout(format=WeightFormat("int8", "int8")), scales))) == 2


def test_experts_in_groups_are_refused_by_the_format_s_name() -> None:
    weight, _ = grouped(WeightLayout(1, 1, format=FOUR_BITS))
    with pytest.raises(
        ValueError, match="experts need one scale a channel here, format 'four bits' has groups or zeros"
    ):
        ExpertMLPs(Activated())(jnp.ones((1, 16)), jnp.ones((1, 1)), jnp.zeros((1, 1), int), weight, weight)
