"""Experts by blocks: every pair is computed once, by its own expert, and the kernels agree with plain NumPy.

Kernels run interpreted; what the compiler makes of them is in `test_experts_h200`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.model.mlp import Activated
from jaxengine.ops.blocks import NONE, Blocks, shared_blocks, sorted_blocks
from jaxengine.ops.experts import ExpertBiases, ExpertMLPs
from jaxengine.ops.triton import experts as triton
from jaxengine.ops.weight import Weight, WeightLayout
from jaxengine.weights.quantization import FORMATS, quantize_weight

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}  # of outputs of about 1
ON_GPU, ON_CPU = WeightLayout(stacked=1, kernels=True), WeightLayout(stacked=1, flat=True)


def routing(kind: str, tokens: int, used: int, count: int) -> np.ndarray:
    """i32 [tokens, used], each token's experts distinct."""
    random = np.random.default_rng(tokens)
    if kind == "one expert":  # with others, as a token has only one of each
        return np.tile(np.arange(used, dtype=np.int32), (tokens, 1))
    limit = 3 if kind == "few" else count
    chosen = np.stack([random.permutation(limit)[:used] for _ in range(tokens)]).astype(np.int32)
    if kind == "padding":
        chosen[tokens // 2 :] = count
    return chosen


def held_once(blocks: Blocks, chosen: np.ndarray, count: int) -> None:
    pairs, expert = map(np.asarray, blocks)
    real = np.flatnonzero(chosen.reshape(-1) < count)
    assert sorted(pairs[pairs != NONE]) == real.tolist()
    block, row = np.nonzero(pairs != NONE)
    np.testing.assert_array_equal(chosen.reshape(-1)[pairs[block, row]], expert[block])


@pytest.mark.parametrize("kind", ["even", "one expert", "few", "padding"])
@pytest.mark.parametrize(("tokens", "used", "count"), [(1, 2, 8), (16, 3, 6), (100, 2, 4), (64, 3, 60)])
def test_each_pair_lies_once_in_a_block_of_its_expert(kind: str, tokens: int, used: int, count: int) -> None:
    chosen = routing(kind, tokens, used, count)
    for rows in (4, 16):
        blocks, row = sorted_blocks(jnp.asarray(chosen.reshape(-1)), count, rows)
        held_once(blocks, chosen, count)
        real = chosen.reshape(-1) < count
        np.testing.assert_array_equal(np.asarray(blocks.pairs).reshape(-1)[np.asarray(row)[real]], np.flatnonzero(real))
    if tokens <= 16:
        held_once(shared_blocks(jnp.asarray(chosen), count, 16), chosen, count)


def test_few_tokens_read_each_of_their_experts_once() -> None:
    chosen = routing("even", 16, 3, 6)
    pairs = np.asarray(triton.blocks_of(jnp.asarray(chosen), 6).pairs)
    assert (pairs.min(1) != NONE).sum() == len(np.unique(chosen))


@pytest.mark.parametrize(("size", "count", "rows"), [(64, 60, 2), (2000, 4, 128), (600, 128, 8), (16384, 128, 128)])
def test_blocks_are_at_most_the_pairs_and_one_for_each_expert(size: int, count: int, rows: int) -> None:
    blocks, _ = sorted_blocks(jnp.zeros(size, jnp.int32), count, rows)
    assert len(blocks.expert) == len(blocks.pairs) <= size // rows + count


def arrays(tokens: int, used: int, count: int, hidden: int, ffn: int, inner: int, dtype: str) -> list[Any]:
    """x, weights, gate_up and down."""
    random = np.random.default_rng(0)
    x, weights = random.normal(size=(tokens, hidden)), random.random((tokens, used))
    gate_up = random.normal(size=(count, inner, ffn, hidden)) / np.sqrt(hidden)
    down = random.normal(size=(count, hidden, ffn)) / np.sqrt(ffn)
    kinds = (dtype, "float32", dtype, dtype)
    return [jnp.asarray(a, k) for a, k in zip((x, weights, gate_up, down), kinds, strict=True)]


def in_8_bits(matrix: Any, quantize: str) -> tuple[Any, Any, Any]:
    """Values and scales, f32, of `matrix` [..., in], and what they stand for."""
    weight = quantize_weight(WeightLayout(stacked=1, format=FORMATS[quantize]), matrix)
    assert weight.scales is not None
    return weight.values, weight.scales, weight.values.astype(jnp.float32) * weight.scales[..., None]


def stacks(gate_up: Any, down: Any, *scales: Any, layout: WeightLayout = ON_GPU) -> list[Weight]:
    return [Weight(each, layout, scale) for each, scale in zip((gate_up, down), scales or (None, None), strict=True)]


def one_by_one(x: Any, chosen: np.ndarray, gate_up: Any, down: Any, bias: Any = 0.0) -> np.ndarray:
    """[T, k, hidden], each pair by itself, in float64; `bias` [E, 2 or 1, F] is added to the first products."""
    x, gate_up, down = (np.asarray(a, np.float64) for a in (x, gate_up, down))
    bias = np.broadcast_to(np.asarray(bias, np.float64), gate_up.shape[:-1])
    out = np.zeros((*chosen.shape, x.shape[1]))
    for token, place in zip(*np.nonzero(chosen < len(down)), strict=True):
        inner = gate_up[chosen[token, place]] @ x[token] + bias[chosen[token, place]]
        activated = inner[0] / (1 + np.exp(-inner[0])) * (inner[1] if len(inner) == 2 else 1)
        out[token, place] = down[chosen[token, place]] @ activated
    return out


@pytest.mark.parametrize(
    ("kind", "tokens", "inner", "dtype"),
    [
        pytest.param("even", 1, 2, "float32", id="one token"),
        pytest.param("even", 16, 2, "bfloat16", id="few tokens"),
        pytest.param("one expert", 7, 1, "float32", id="few tokens on two experts, no gate"),
        pytest.param("even", 80, 2, "float32", id="many tokens"),
        pytest.param("few", 70, 2, "bfloat16", id="many tokens, experts without any"),
        pytest.param("one expert", 300, 2, "float32", id="many tokens on two experts"),
        pytest.param("padding", 40, 2, "float32", id="padding"),
        pytest.param("padding", 8, 2, "float32", id="few tokens, padding"),
    ],
)
def test_the_kernels_compute_each_pair_s_own_expert(kind: str, tokens: int, inner: int, dtype: str) -> None:
    chosen = routing(kind, tokens, 2, 6)
    x, _, gate_up, down = arrays(tokens, 2, 6, 48, 80, inner, dtype)
    kernels = jax.jit(partial(triton.apply, activation=Activated(), interpret=True))
    out = np.asarray(kernels(x, jnp.asarray(chosen), *stacks(gate_up, down)), np.float64)
    np.testing.assert_allclose(out, one_by_one(x, chosen, gate_up, down), atol=TOLERANCE[dtype] * 4, rtol=0)


@pytest.mark.parametrize(
    ("quantize", "tokens", "inner", "dtype"),
    [("int8", 5, 2, "float32"), ("fp8", 16, 1, "bfloat16"), ("fp8", 80, 2, "float32"), ("int8", 70, 1, "float16")],
)
def test_the_kernels_scale_what_they_read_in_8_bits(quantize: str, tokens: int, inner: int, dtype: str) -> None:
    chosen = routing("padding", tokens, 2, 6)
    x, _, *matrices = arrays(tokens, 2, 6, 48, 80, inner, "float32")
    (up, up_scale, exact_up), (down, down_scale, exact_down) = (in_8_bits(each, quantize) for each in matrices)
    kernels = jax.jit(partial(triton.apply, activation=Activated(), interpret=True))
    out = kernels(x.astype(dtype), jnp.asarray(chosen), *stacks(up, down, up_scale, down_scale))
    expected = one_by_one(x.astype(dtype), chosen, exact_up, exact_down)
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=TOLERANCE[dtype] * 4, rtol=0)


def drawn_bias(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.bfloat16)


@pytest.mark.parametrize(("tokens", "inner"), [(5, 2), (80, 1)])
def test_the_kernels_add_each_expert_s_bias(tokens: int, inner: int) -> None:
    chosen, bias = routing("padding", tokens, 2, 6), drawn_bias(6, inner, 80)
    x, _, gate_up, down = arrays(tokens, 2, 6, 48, 80, inner, "float32")
    kernels = jax.jit(partial(triton.apply, activation=Activated(), interpret=True))
    out = kernels(x, jnp.asarray(chosen), *stacks(gate_up, down), bias=bias)
    np.testing.assert_allclose(out, one_by_one(x, chosen, gate_up, down, bias), atol=1e-5, rtol=0)


@pytest.mark.parametrize("tokens", [1, 90])
def test_the_loop_adds_the_biases_of_both_products(tokens: int) -> None:
    chosen, biases = routing("padding", tokens, 2, 16), ExpertBiases(drawn_bias(16, 2, 40), drawn_bias(16, 24))
    x, weights, gate_up, down = arrays(tokens, 2, 16, 24, 40, 2, "float32")
    out = jax.jit(ExpertMLPs(Activated()))(
        x, weights, jnp.asarray(chosen), *stacks(gate_up, down, layout=ON_CPU), biases
    )
    pairs, real = one_by_one(x, chosen, gate_up, down, biases.gate_up), chosen < 16
    pairs[real] += np.asarray(biases.down, np.float64)[chosen[real]]
    expected = np.einsum("tk,tkh->th", np.asarray(weights, np.float64), pairs)
    np.testing.assert_allclose(out, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("tokens", [1, 90])
def test_the_loop_scales_what_it_reads_in_8_bits(quantize: str, tokens: int) -> None:
    chosen = routing("padding", tokens, 2, 16)
    x, weights, *matrices = arrays(tokens, 2, 16, 24, 40, 2, "float32")
    (up, up_scale, exact_up), (down, down_scale, exact_down) = (in_8_bits(each, quantize) for each in matrices)
    loop = jax.jit(ExpertMLPs(Activated()))
    out = loop(x, weights, jnp.asarray(chosen), *stacks(up, down, up_scale, down_scale, layout=ON_CPU))
    pairs = one_by_one(x, chosen, exact_up, exact_down)
    expected = np.einsum("tk,tkh->th", np.asarray(weights, np.float64), pairs)
    np.testing.assert_allclose(out, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("kind", ["even", "one expert", "few", "padding"])
@pytest.mark.parametrize("tokens", [1, 5, 90])
def test_the_loop_computes_each_pair_s_own_expert(kind: str, tokens: int) -> None:
    chosen = routing(kind, tokens, 2, 16)
    x, weights, gate_up, down = arrays(tokens, 2, 16, 24, 40, 2, "float32")
    mlps = ExpertMLPs(Activated())
    out = jax.jit(mlps)(x, weights, jnp.asarray(chosen), *stacks(gate_up, down, layout=ON_CPU))
    expected = np.einsum("tk,tkh->th", np.asarray(weights, np.float64), one_by_one(x, chosen, gate_up, down))
    np.testing.assert_allclose(out, expected, atol=1e-5, rtol=0)


def test_widths_that_the_kernels_cannot_cut_are_refused() -> None:
    x, _, gate_up, down = arrays(2, 2, 4, 32, 40, 2, "float32")
    with pytest.raises(ValueError, match="expert width in multiples of 16, the model has 40"):
        triton.apply(x, jnp.zeros((2, 2), jnp.int32), *stacks(gate_up, down), Activated(), interpret=True)
