"""Chunks of a matrix in few bits as numbers of 16 bits, interpreted: exactly what the weight stands for."""

from dataclasses import replace
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.model.linear import weight_layout
from jaxengine.ops.triton import dequantised, grouped
from jaxengine.ops.triton.grouped_tile import Stored
from jaxengine.ops.weight import Weight
from jaxengine.weights.quantization import group_weight
from tests.gpu.products import HELD
from tests.jaxengine.ops.test_grouped import EXACT
from tests.shapes import H200

OUTPUTS, INPUTS = 208, 1280  # ten groups of 128, five of 256
FORMATS = {name: format for name, format in HELD.items() if format is not None}
FORMATS |= {
    "int4 with zeros in floats": WeightFormat("", "uint8", "bfloat16", "float16", 64, bits=4),
    "int4 in wide groups": WeightFormat("", "int8", "bfloat16", group=256, bits=4),
    "int4 in narrow groups": WeightFormat("", "int8", "float16", group=16, bits=4),
    "int4 a channel": WeightFormat("", "int8", "float32", bits=4),
    "uint8 with zeros": WeightFormat("", "uint8", "float32", "uint8", 128),
}


def drawn(format: WeightFormat, inputs: int = INPUTS) -> Weight:
    draw, parameter = np.random.default_rng(0), Parameter((OUTPUTS, inputs), (None, None), 1)
    levels = 1 << min(format.bits, 6)
    values = jnp.asarray(draw.integers(0, levels, parameter.shape) - format.offset, format.values)
    shared = parameter.component("scales", format).shape
    scales = jnp.asarray(draw.uniform(1e-3, 2e-3, shared), format.scales)
    zeros = None if format.zeros is None else jnp.asarray(draw.uniform(0, 16, shared), format.zeros)
    layout = weight_layout(parameter, H200, format, (OUTPUTS, inputs))
    return group_weight(layout, Weight(values, layout, scales, zeros))


def stored(weight: Weight) -> Stored:
    format, inputs = weight.layout.format, weight.dense("float32").shape[1]
    assert format is not None and weight.scales is not None
    group = inputs // len(weight.scales)
    return Stored.of(inputs, weight.layout.plane, group, format.offset, format.table, True, octets(weight))


def octets(weight: Weight) -> str:
    format = weight.layout.format
    return format.values if format is not None and weight.layout.plane and format.bits > 4 else ""


def chunk(weight: Weight, dtype: str, start: int, outputs: int) -> Array:
    assert weight.scales is not None
    after = jnp.zeros((1, 1), dtype)
    return dequantised.chunk(
        weight.values, weight.scales, weight.zeros, after, start=start, outputs=outputs, stored=stored(weight)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_chunk_is_bit_for_bit_what_its_outputs_stand_for(name: str) -> None:
    weight = drawn(FORMATS[name])
    assert weight.layout.grouped
    np.testing.assert_array_equal(chunk(weight, "bfloat16", 48, 128), weight.dense("bfloat16")[48:176])


@pytest.mark.parametrize("name", ["int4", "nf4", "fp8 in blocks"])
def test_a_chunk_is_exact_in_f16_too(name: str) -> None:
    weight = drawn(FORMATS[name], 320 if name == "nf4" else 640)
    np.testing.assert_array_equal(chunk(weight, "float16", 0, OUTPUTS), weight.dense("float16"))


def product(weight: Weight, x: Array) -> Array:
    assert weight.layout.format is not None and weight.scales is not None
    return grouped.product(
        x,
        weight.values,
        weight.scales,
        weight.zeros,
        plane=weight.layout.plane,
        group=x.shape[1] // len(weight.scales),
        offset=weight.layout.format.offset,
        table=weight.layout.format.table,
        octets=octets(weight),
        interpret=True,
    )


@pytest.mark.parametrize("name", ["nf4", "int8", "fp8 in blocks"])
@pytest.mark.parametrize("outputs", [208, 128, 64])
def test_many_tokens_are_multiplied_by_one_chunk_after_the_other(name: str, outputs: int) -> None:
    weight = drawn(FORMATS[name], 256)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(500, 256)), "bfloat16")
    with patch.object(dequantised, "CHUNK", outputs * 256 * 2):
        assert len(list(dequantised.chunks(OUTPUTS, 256 * 2))) == {208: 2, 128: 2, 64: 4}[outputs]
        ours = np.asarray(product(weight, x), np.float64)
    expected = np.asarray(x, np.float64) @ np.asarray(weight.dense("bfloat16"), np.float64).T
    np.testing.assert_allclose(ours, expected, atol=EXACT["bfloat16"] * np.abs(expected).max())


def test_few_tokens_and_f32_are_left_to_the_other_kernel() -> None:
    weight = drawn(replace(FORMATS["int4"], group=64), 256)
    with patch.object(dequantised, "product") as other:
        product(weight, jnp.zeros((64, 256), "bfloat16"))
        product(weight, jnp.zeros((grouped.MANY_TOKENS, 256), "float32"))
        assert not other.called
        product(weight, jnp.zeros((grouped.MANY_TOKENS, 256), "bfloat16"))
        assert other.called


@pytest.mark.parametrize(
    ("outputs", "inputs", "sizes"),
    [
        (28672, 4096, [28672]),
        (57344, 8192, [16384] * 3 + [8192]),  # of a Llama of 70B
        (3584, 1 << 17, [1024] * 3 + [512]),
        (208, 1 << 23, [16] * 13),
    ],
)
def test_chunks_are_not_too_large_and_cover_the_outputs(outputs: int, inputs: int, sizes: list[int]) -> None:
    found = list(dequantised.chunks(outputs, inputs * 2))
    assert [size for _, size in found] == sizes
    assert [start for start, _ in found] == np.cumsum([0, *sizes[:-1]]).tolist()
    assert max(sizes) * inputs * 2 <= dequantised.CHUNK
