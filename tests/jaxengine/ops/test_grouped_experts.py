"""Experts in formats with groups: the kernels, interpreted, against what each expert's matrices stand for."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convert.quantized.fp4 import E2M1
from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.model.linear import weight_layout
from jaxengine.model.mlp import Activated
from jaxengine.ops.triton import experts as triton
from jaxengine.ops.weight import Weight
from jaxengine.weights.quantization import FORMATS, FOUR_BITS, NF4, group_weight
from tests.jaxengine.ops.test_experts import one_by_one, routing
from tests.shapes import H200

EXACT = {"float32": 1e-5, "bfloat16": 2**-6, "float16": 2**-9}  # of the largest result; the inner row is rounded too
COUNT, HIDDEN, FFN = 5, 128, 192
INT4 = FOUR_BITS["int4"]
MXFP4 = WeightFormat("mxfp4", "uint8", "bfloat16", group=32, table=E2M1, bits=4)
FORMAT = {
    "codes": replace(INT4, group=32),
    "codes, a scale a channel, zeros": WeightFormat("", "uint8", "float32", "uint8", bits=4),
    "codes, whole zeros": WeightFormat("", "uint8", "float16", "uint8", 64, bits=4),
    "codes, zeros that are not whole": WeightFormat("", "uint8", "float16", "float16", 64, bits=4),
    "table": WeightFormat("", "uint8", "float32", group=16, table=NF4, bits=4),
    "int8": WeightFormat("", "int8", "bfloat16", group=32),
    "int8, zeros": WeightFormat("", "uint8", "float16", "uint8", 64),
    "fp8": WeightFormat("", "float8_e4m3fn", "float32", group=64),
}


def stack(format: WeightFormat, *shape: int) -> tuple[Weight, np.ndarray]:
    """A random stack [E, out…, in] as a GPU holds it, and what it stands for, f64."""
    draw, parameter = np.random.default_rng(len(shape)), Parameter(shape, (None,) * len(shape), 1, stacked=1)
    group = format.group or shape[-1]
    shared = (*shape[:-1], shape[-1] // group)
    low = -format.offset
    codes = draw.integers(low, low + (16 if format.bits == 4 else 100), shape)
    scales = np.asarray(jnp.asarray(draw.uniform(0.3, 1, shared) * 0.3 * group**-0.5, format.scales))
    zeros = None if format.zeros is None else draw.uniform(0, 16, shared).astype(format.zeros)
    numbers = np.asarray(format.table)[codes] if format.table else codes.astype(np.float64)
    base = 0 if zeros is None else np.repeat(zeros.astype(np.float64), group, -1)
    values = jnp.asarray(codes, format.values)
    numbers = numbers if format.table or format.bits == 4 else np.asarray(values, np.float64)
    dense = (numbers - base) * np.repeat(scales.astype(np.float64), group, -1)
    per_group = (each if each is None or format.group else each[..., 0] for each in (scales, zeros))
    plain = (each if each is None else jnp.asarray(each) for each in per_group)
    layout = weight_layout(parameter, H200, format, (math.prod(shape[1:-1]), shape[-1]))
    return group_weight(layout, Weight(values, replace(layout, grouped=0, plane=0), *plain)), dense


def check(
    dtype: str,
    chosen: np.ndarray,
    gate_up: tuple[Weight, np.ndarray],
    down: tuple[Weight, np.ndarray],
    biased: bool = False,
) -> None:
    draw = np.random.default_rng(1)
    x = jnp.asarray(draw.normal(size=(len(chosen), HIDDEN)), dtype)
    bias = jnp.asarray(draw.normal(size=gate_up[1].shape[:-1]), dtype) if biased else None
    kernels = jax.jit(partial(triton.apply, activation=Activated(), interpret=True))
    out = np.asarray(kernels(x, jnp.asarray(chosen), gate_up[0], down[0], bias=bias), np.float64)
    expected = one_by_one(x, chosen, gate_up[1], down[1], 0 if bias is None else bias)
    np.testing.assert_allclose(out, expected, atol=EXACT[dtype] * np.abs(expected).max(), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMAT)
def test_the_kernels_compute_with_what_every_format_stands_for(format: str) -> None:
    gate_up, down = stack(FORMAT[format], COUNT, 2, FFN, HIDDEN), stack(FORMAT[format], COUNT, HIDDEN, FFN)
    check("float32", routing("padding", 6, 2, COUNT), gate_up, down)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tokens", "inner", "dtype"),
    [
        pytest.param("even", 1, 2, "bfloat16", id="one token"),
        pytest.param("one expert", 16, 1, "float16", id="few tokens on two experts, no gate"),
        pytest.param("padding", 90, 2, "bfloat16", id="many tokens, padding"),
        pytest.param("few", 200, 1, "float32", id="more rows than a block of f32 holds"),
    ],
)
def test_each_pair_s_own_expert_is_computed(kind: str, tokens: int, inner: int, dtype: str) -> None:
    format = FORMAT["codes, whole zeros"]
    gate_up, down = stack(format, COUNT, inner, FFN, HIDDEN), stack(format, COUNT, HIDDEN, FFN)
    check(dtype, routing(kind, tokens, 2, COUNT), gate_up, down)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "inner", "dtype"), [(6, 2, "float32"), (90, 2, "bfloat16"), (90, 1, "float32")])
def test_each_expert_s_bias_is_added(tokens: int, inner: int, dtype: str) -> None:
    gate_up, down = stack(MXFP4, COUNT, inner, FFN, HIDDEN), stack(MXFP4, COUNT, HIDDEN, FFN)
    check(dtype, routing("padding", tokens, 2, COUNT), gate_up, down, biased=True)


@pytest.mark.slow
@pytest.mark.parametrize("packed", ["gate_up", "down"])
def test_the_two_stacks_may_have_different_formats(packed: str) -> None:
    four, eight = FORMAT["codes"], FORMATS["int8"]
    of_up, of_down = (four, eight) if packed == "gate_up" else (eight, four)
    gate_up, down = channels(of_up, COUNT, 2, FFN, HIDDEN), channels(of_down, COUNT, HIDDEN, FFN)
    check("float32", routing("even", 40, 2, COUNT), gate_up, down)


def channels(format: WeightFormat, *shape: int) -> tuple[Weight, np.ndarray]:
    if format.group:
        return stack(format, *shape)
    draw, parameter = np.random.default_rng(0), Parameter(shape, (None,) * len(shape), 1, stacked=1)
    values, scales = draw.integers(-127, 128, shape), draw.uniform(1e-4, 1e-3, shape[:-1]).astype(np.float32)
    layout = weight_layout(parameter, H200, format)
    return Weight(jnp.asarray(values, jnp.int8), layout, jnp.asarray(scales)), values * scales[..., None].astype(float)


@pytest.mark.parametrize("format", FORMAT)
def test_a_stack_stands_for_what_its_matrices_do(format: str) -> None:
    weight, dense = stack(FORMAT[format], 3, 2, 32, HIDDEN)
    np.testing.assert_allclose(weight.dense("float32"), dense, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(weight.matrix(jnp.int32(1)).dense("float32"), dense[1], rtol=1e-6, atol=1e-7)
