"""The kernel of grouped formats, interpreted, against the matrix that a weight stands for."""

import itertools
import re
from collections.abc import Callable

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxengine.model.mlp import Activated
from jaxengine.ops.packing import octets, of_octets, pack, plane_of, unpack
from jaxengine.ops.triton import grouped
from jaxengine.ops.triton.grouped import HOPPER_SHARED, Tiles
from jaxengine.ops.triton.grouped_tile import Stored

OCTETS = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")

NF4 = tuple(np.sort(np.random.default_rng(4).normal(size=16)).astype(np.float32).tolist())
EXACT = {"float32": 2e-6, "bfloat16": 2**-8, "float16": 2**-11}  # of the largest result
CASES = {  # tokens, outputs, inputs, group (0: all)
    "one token": (1, 128, 512, 128),
    "split inputs": (3, 192, 1024, 64),
    "groups of 32": (70, 256, 512, 32),
    "groups of 16": (5, 64, 512, 16),
    "a scale a channel": (130, 128, 256, 0),
    "narrow planes": (5, 64, 576, 64),
    "groups of several steps": (17, 16, 2048, 1024),
    "splits that do not divide": (3, 16, 2816, 128),
    "large tiles": (70, 16384, 256, 128),
}
Zeros = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def scaled(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """f64 [out, in] of numbers [out, in] and scales [groups, out]."""
    return numbers * np.repeat(scales.T.astype(np.float64), numbers.shape[1] // len(scales), 1)


def check(x: jnp.ndarray, matrix: np.ndarray, ours: jnp.ndarray) -> None:
    expected = np.asarray(x, np.float64) @ matrix.T
    np.testing.assert_allclose(
        np.asarray(ours, np.float64), expected, atol=EXACT[x.dtype.name] * np.abs(expected).max()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "zeros", "dtype"),
    [
        ("one token", None, "bfloat16"),
        ("one token", "uint8", "float16"),
        ("split inputs", "uint8", "bfloat16"),
        ("groups of 32", "float16", "bfloat16"),
        ("groups of 16", None, "float32"),
        ("a scale a channel", "uint8", "float32"),
        ("narrow planes", "float16", "float32"),
        ("groups of several steps", None, "float16"),
        ("splits that do not divide", "float16", "bfloat16"),
    ],
)
def test_four_bits(case: str, zeros: str | None, dtype: str) -> None:
    tokens, outputs, inputs, group = CASES[case]
    draw, plane = np.random.default_rng(len(case)), plane_of(inputs, group)
    groups = inputs // group if group else 1
    codes, scales = draw.integers(0, 16, (outputs, inputs)), draw.uniform(1e-3, 1e-2, (groups, outputs))
    base = draw.uniform(0, 17, (groups, outputs)).astype(zeros) if zeros else np.full((groups, outputs), 8)
    x = jnp.asarray(draw.normal(size=(tokens, inputs)), dtype)
    ours = grouped.product(
        x,
        pack(jnp.asarray(codes), plane),
        jnp.asarray(scales, jnp.float32),
        jnp.asarray(base) if zeros else None,
        plane=plane,
        group=inputs // groups,
        offset=0 if zeros else 8,
        interpret=True,
    )
    each = np.repeat(base.T.astype(np.float64), inputs // groups, 1)
    check(x, scaled(codes - each, scales.astype(np.float32)), ours)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("tokens", "outputs", "inputs", "dtype"),
    [(1, 192, 1024, "bfloat16"), (20, 64, 256, "float32"), (70, 4096, 256, "float16"), (400, 64, 256, "bfloat16")],
    ids=str,
)
def test_products_are_activated_where_they_are_made(
    parts: int, tokens: int, outputs: int, inputs: int, dtype: str
) -> None:
    """In splits, alone, and of many tokens, whose matrix is written out."""
    draw, plane = np.random.default_rng(tokens), plane_of(inputs, 64)
    codes, scales = draw.integers(0, 16, (outputs, inputs)), draw.uniform(1e-3, 1e-2, (inputs // 64, outputs))
    x = jnp.asarray(draw.normal(size=(tokens, inputs)), dtype)
    ours = grouped.product(
        x,
        pack(jnp.asarray(codes), plane),
        jnp.asarray(scales, jnp.float32),
        None,
        plane=plane,
        group=64,
        offset=8,
        activation=Activated("relu"),
        parts=parts,
        interpret=True,
    )
    products = np.split(np.asarray(x, np.float64) @ scaled(codes - 8, scales.astype(np.float32)).T, parts, 1)
    expected = np.maximum(products[0], 0) * (products[1] if parts == 2 else 1)
    assert ours.shape == (tokens, outputs // parts)
    assert ours.dtype == x.dtype
    bound = 3 * EXACT[dtype] * np.abs(expected).max()  # each factor is rounded where the matrix is written out
    np.testing.assert_allclose(np.asarray(ours, np.float64), expected, atol=bound)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "bytes"])
@pytest.mark.parametrize(
    ("case", "dtype", "zeros"),
    [
        ("one token", "int8", None),
        ("one token", "int8", "float16"),
        ("split inputs", "uint8", "uint8"),
        ("groups of 32", "float8_e4m3fn", None),
        ("groups of 32", "uint8", "uint8"),
        ("groups of 16", "int8", None),
        ("narrow planes", "float8_e5m2", None),
        ("a scale a channel", "int8", None),
        ("a scale a channel", "float8_e4m3fn", None),
        ("a scale a channel", "float8_e5m2", None),
        ("groups of several steps", "int8", "int8"),
        ("splits that do not divide", "int8", "int8"),
        ("groups of several steps", "float8_e4m3fn", None),
    ],
)
def test_eight_bits(case: str, dtype: str, zeros: str | None, packed: bool) -> None:
    tokens, outputs, inputs, group = CASES[case]
    draw, groups = np.random.default_rng(len(case)), inputs // group if group else 1
    every = all_values(dtype)
    every = every[np.abs(every.astype(np.float32)) < 500]
    values = draw.choice(every, (outputs, inputs))
    scales = draw.uniform(1e-3, 1e-2, (groups, outputs)).astype(ml_dtypes.bfloat16)
    base = draw.integers(0, 128, (groups, outputs)).astype(zeros) if zeros else None
    x = jnp.asarray(draw.normal(size=(tokens, inputs)), "bfloat16")
    plane = plane_of(inputs, group, 8) if packed else 0
    ours = grouped.product(
        x,
        pack(octets(jnp.asarray(values)), plane, 8) if packed else jnp.asarray(values),
        jnp.asarray(scales),
        None if base is None else jnp.asarray(base),
        plane=plane,
        group=inputs // groups,
        octets=dtype if packed else "",
        interpret=True,
    )
    each = 0 if base is None else np.repeat(base.T.astype(np.float64), inputs // groups, 1)
    check(x, scaled(values.astype(np.float64) - each, scales), ours)


@pytest.mark.slow
def test_codes_that_number_a_table_s_entries() -> None:
    draw = np.random.default_rng(0)
    codes, scales = draw.integers(0, 16, (64, 256)), draw.uniform(1e-3, 1e-2, (4, 64)).astype(np.float32)
    x = jnp.asarray(draw.normal(size=(5, 256)), "float32")
    words = pack(jnp.asarray(codes), 16)
    ours = grouped.product(x, words, jnp.asarray(scales), None, plane=16, group=64, table=NF4, interpret=True)
    check(x, scaled(np.asarray(NF4)[codes], scales), ours)


@pytest.mark.parametrize(
    ("inputs", "group", "plane"),
    [(512, 128, 64), (128, 32, 32), (576, 64, 16), (512, 0, 64), (768, 192, 16), (768, 384, 32), (768, 96, 0)],
)
def test_packing_loses_nothing(inputs: int, group: int, plane: int) -> None:
    codes = np.random.default_rng(0).integers(0, 16, (3, 5, inputs))
    assert plane_of(inputs, group) == plane
    if not plane:
        return
    words = pack(jnp.asarray(codes), plane)
    assert words.dtype == jnp.uint16 and words.shape == (3, 5, inputs // 4)
    np.testing.assert_array_equal(unpack(words, plane), codes)


@pytest.mark.parametrize("dtype", OCTETS)
@pytest.mark.parametrize(
    ("inputs", "group", "plane"),
    [(512, 128, 64), (64, 32, 32), (288, 0, 16), (16, 0, 0), (192, 48, 0), (384, 96, 16), (384, 192, 32)],
)
def test_packing_bytes_loses_nothing(dtype: str, inputs: int, group: int, plane: int) -> None:
    assert plane_of(inputs, group, 8) == plane
    if not plane:
        return
    values = np.resize(np.random.default_rng(0).permutation(all_values(dtype)), (3, 5, inputs))
    words = pack(octets(jnp.asarray(values)), plane, 8)
    assert words.dtype == jnp.uint16 and words.shape == (3, 5, inputs // 2)
    back = of_octets(unpack(words, plane, 8), dtype)
    assert back.dtype == dtype
    np.testing.assert_array_equal(np.asarray(back).view(np.uint8), values.view(np.uint8))


def all_values(dtype: str) -> np.ndarray:
    """The 256 of an 8-bit type."""
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((24, 256, 64, 4), "outputs in multiples of 16, not 24"),
        ((64, 300, 64, 4), "300 inputs are no whole groups of 64"),
        ((64, 96, 32, 4), "96 inputs in groups of 32 do not divide"),
        ((64, 256, 8, 4), "256 inputs in groups of 8 do not divide"),
        ((64, 256, 8, 8), "256 inputs in groups of 8 do not divide"),
        ((64, 256, 64, 4), ""),
        ((64, 96, 32, 8), ""),
    ],
)
def test_what_the_kernel_cannot_multiply_is_named(sizes: tuple[int, int, int, int], problem: str) -> None:
    assert re.search(problem, grouped.unsupported(*sizes)) and bool(grouped.unsupported(*sizes)) == bool(problem)


@pytest.mark.parametrize(
    ("product", "tiles"),
    [
        ((16, 4096, 4096, 4), (64, 16, 8)),
        ((16, 28672, 4096, 4), (64, 16, 1)),
        ((64, 6144, 4096, 4), (64, 64, 4)),
        ((128, 4096, 14336, 4), (64, 64, 2)),
        ((128, 28672, 4096, 4), (128, 128, 1)),
        ((128, 28672, 4096, 8), (256, 128, 1)),
    ],
    ids=str,
)
def test_tiles_are_those_that_an_h200_measured_as_fastest(
    product: tuple[int, int, int, int], tiles: tuple[int, int, int]
) -> None:
    """Tokens, outputs, inputs and bits of products of an 8B Llama → outputs, tokens and splits."""
    tokens, outputs, inputs, bits = product
    chosen = Tiles.choose(tokens, outputs, inputs, stored(inputs, bits), HOPPER_SHARED, wide=False)
    assert (chosen.outputs, chosen.tokens, chosen.splits) == tiles


@pytest.mark.parametrize("bits", [4, 8])
def test_tiles_fit_a_gpu_with_little_shared_memory(bits: int) -> None:
    """Whose programs may take 99 KiB: for each stage the activations, and but for one the words."""
    for tokens, outputs, inputs in itertools.product((1, 2, 16, 17, 64, 100, 383), (16, 4096, 28672), (4096, 11008)):
        held = stored(inputs, bits)
        chosen = Tiles.choose(tokens, outputs, inputs, held, 99, wide=False)
        stages = chosen.params.num_stages
        words = (stages - 1) * chosen.outputs * held.plane
        assert chosen.tokens <= 64
        assert 2 * (stages * chosen.tokens * held.step + words) <= 99 << 10


@pytest.mark.parametrize("bits", [4, 8])
def test_splits_are_no_more_than_there_are_steps(bits: int) -> None:
    held = stored(512, bits)
    chosen = Tiles.choose(2, 64, 512, held, 99, wide=False)
    assert chosen.splits * held.step <= 512


def stored(inputs: int, bits: int) -> Stored:
    """Of int4 in groups of 128, and of int8 with a scale a channel."""
    return Stored.of(inputs, 64, 128 if bits == 4 else 0, 8 if bits == 4 else 0, octets="int8" if bits == 8 else "")
