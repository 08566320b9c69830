"""The kernel of grouped formats, interpreted, against the matrix that a weight stands for; and the PTX that the
interpreter does not run.
"""

import itertools
import re
from collections.abc import Callable

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxengine.ops.packing import pack, plane_of, unpack
from jaxengine.ops.triton import grouped
from jaxengine.ops.triton.unpacking import assembly
from jaxengine.weights.quantization import FP4

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
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("one token", "int8"),
        ("split inputs", "uint8"),
        ("groups of 32", "float8_e4m3fn"),
        ("groups of 16", "int8"),
        ("a scale a channel", "float8_e4m3fn"),
    ],
)
def test_eight_bits(case: str, dtype: str) -> None:
    tokens, outputs, inputs, group = CASES[case]
    draw, groups = np.random.default_rng(len(case)), inputs // group if group else 1
    values = draw.integers(0, 100, (outputs, inputs)).astype(getattr(ml_dtypes, dtype, dtype))
    scales = draw.uniform(1e-3, 1e-2, (groups, outputs)).astype(ml_dtypes.bfloat16)
    zeros = draw.integers(0, 128, (groups, outputs)).astype(np.uint8) if dtype == "uint8" else None
    x = jnp.asarray(draw.normal(size=(tokens, inputs)), "bfloat16")
    ours = grouped.product(
        x,
        jnp.asarray(values),
        jnp.asarray(scales),
        None if zeros is None else jnp.asarray(zeros),
        plane=0,
        group=inputs // groups,
        interpret=True,
    )
    base = 0 if zeros is None else np.repeat(zeros.T.astype(np.float64), inputs // groups, 1)
    check(x, scaled(values.astype(np.float64) - base, scales), ours)


@pytest.mark.slow
def test_codes_that_number_a_table_s_entries() -> None:
    draw = np.random.default_rng(0)
    codes, scales = draw.integers(0, 16, (64, 256)), draw.uniform(1e-3, 1e-2, (4, 64)).astype(np.float32)
    x = jnp.asarray(draw.normal(size=(5, 256)), "float32")
    words = pack(jnp.asarray(codes), 16)
    ours = grouped.product(x, words, jnp.asarray(scales), None, plane=16, group=64, table=NF4, interpret=True)
    check(x, scaled(np.asarray(NF4)[codes], scales), ours)


@pytest.mark.parametrize(("inputs", "group", "plane"), [(512, 128, 64), (128, 32, 32), (576, 64, 16), (512, 0, 64)])
def test_packing_loses_nothing(inputs: int, group: int, plane: int) -> None:
    codes = np.random.default_rng(0).integers(0, 16, (3, 5, inputs))
    assert plane_of(inputs, group) == plane
    words = pack(jnp.asarray(codes), plane)
    assert words.dtype == jnp.uint16 and words.shape == (3, 5, inputs // 4)
    np.testing.assert_array_equal(unpack(words, plane), codes)


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


def run_ptx(asm: str, **words: int) -> dict[str, int]:
    """What the instructions that the kernel uses leave in registers, by their description in NVIDIA's PTX manual."""
    registers = {f"${number.removeprefix('_')}": word for number, word in words.items()}

    def value(operand: str) -> int:
        return registers[operand] if operand in registers else int(operand, 0)

    for line in re.sub(r"//[^\n]*|[{}]", "", asm).replace("\n", " ").split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name.startswith("."):
            continue
        target, *operands = (each.strip() for each in rest.split(","))
        registers[target] = PTX[name.split(".")[0]](*map(value, operands)) & 0xFFFFFFFF
    return registers


def permuted(low: int, high: int, selector: int) -> int:
    octets = (low | high << 32).to_bytes(8, "little")
    result = 0
    for place in range(4):
        chosen = selector >> (4 * place) & 15
        octet = octets[chosen & 7]
        result |= ((255 if octet & 128 else 0) if chosen & 8 else octet) << (8 * place)
    return result


def by_table(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))


PTX: dict[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "shr": lambda a, b: a >> b,
    "shl": lambda a, b: a << b,
    "and": lambda a, b: a & b,
    "prmt": permuted,
    "lop3": by_table,
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("plane", range(4))
def test_the_assembly_makes_two_numbers_of_two_words(plane: int, dtype: str) -> None:
    asm, added = assembly(plane, (), jnp.dtype(dtype))
    expected = bits(np.arange(16) + added, dtype)
    for first, second in itertools.product(range(16), repeat=2):
        made = run_ptx(asm, _1=words_of(plane, first, second))["$0"]
        assert (made & 0xFFFF, made >> 16) == (expected[first], expected[second])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("plane", range(4))
@pytest.mark.parametrize("table", [NF4, FP4], ids=["nf4", "fp4"])
def test_the_assembly_looks_four_numbers_of_four_words_up(plane: int, table: tuple[float, ...], dtype: str) -> None:
    asm, added = assembly(plane, table, jnp.dtype(dtype))
    expected = bits(np.asarray(table), dtype)
    assert added == 0
    for codes in itertools.chain(itertools.product((0, 5, 8, 15), repeat=4), zip(*[range(16)] * 4, strict=True)):
        done = run_ptx(asm, _2=words_of(plane, *codes[:2]), _3=words_of(plane, *codes[2:]))
        made = [half for each in ("$0", "$1") for half in (done[each] & 0xFFFF, done[each] >> 16)]
        assert made == [expected[code] for code in codes]


def words_of(plane: int, first: int, second: int) -> int:
    """Two words of 16 bits in a register, with these codes in a plane and noise in others."""
    noise = 0xA5C3_5A3C & ~(0x000F_000F << 4 * plane)
    return noise | first << 4 * plane | second << 4 * plane + 16


def bits(numbers: np.ndarray, dtype: str) -> list[int]:
    return numbers.astype(np.float32).astype(jnp.dtype(dtype)).view(np.uint16).tolist()  # type: ignore[no-any-return]
