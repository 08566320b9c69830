"""The kernel of grouped formats, interpreted, against the matrix that a weight stands for; and the PTX that the
interpreter does not run.
"""

import itertools
import re
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxengine.ops.packing import octets, of_octets, pack, plane_of, unpack
from jaxengine.ops.triton import grouped
from jaxengine.ops.triton.unpacking import assembly, octet_assembly, unpacked_octets
from jaxengine.weights.quantization import FP4

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


@pytest.mark.parametrize(("inputs", "group", "plane"), [(512, 128, 64), (128, 32, 32), (576, 64, 16), (512, 0, 64)])
def test_packing_loses_nothing(inputs: int, group: int, plane: int) -> None:
    codes = np.random.default_rng(0).integers(0, 16, (3, 5, inputs))
    assert plane_of(inputs, group) == plane
    words = pack(jnp.asarray(codes), plane)
    assert words.dtype == jnp.uint16 and words.shape == (3, 5, inputs // 4)
    np.testing.assert_array_equal(unpack(words, plane), codes)


@pytest.mark.parametrize("dtype", OCTETS)
@pytest.mark.parametrize(("inputs", "group", "plane"), [(512, 128, 64), (64, 32, 32), (288, 0, 16), (16, 0, 0)])
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("values", OCTETS)
@pytest.mark.parametrize("plane", range(2))
def test_bytes_become_numbers(plane: int, values: str, dtype: str) -> None:
    expected = all_values(values)
    words = octets(jnp.asarray(expected)).astype(jnp.uint16) << 8 * plane | 0x3C << 8 * (1 - plane)
    made = unpacked_octets(words, plane, 0, values, jnp.dtype(dtype), interpret=True)
    finite = np.isfinite(expected.astype(np.float32))
    assert made.dtype == dtype
    np.testing.assert_array_equal(np.asarray(made, np.float32)[finite], expected.astype(np.float32)[finite])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("values", OCTETS)
@pytest.mark.parametrize("plane", range(2))
def test_the_assembly_makes_two_numbers_of_two_bytes(plane: int, values: str, dtype: str) -> None:
    asm, expected = octet_assembly(plane, values, jnp.dtype(dtype)), all_values(values).astype(np.float32)
    codes = np.asarray(octets(jnp.asarray(all_values(values)))).tolist()
    for place, first in enumerate(codes):
        other = (place * 37 + 11) % 256
        noise = 0xA5C3_5A3C & ~(0x00FF_00FF << 8 * plane)
        made = run_ptx(asm, _1=noise | first << 8 * plane | codes[other] << 8 * plane + 16)["$0"]
        for half, wanted in ((made & 0xFFFF, expected[place]), (made >> 16, expected[other])):
            assert not np.isfinite(wanted) or half == bits(np.asarray([wanted]), dtype)[0]


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
        makes = PTX[name.removeprefix("fma.rn.") if name.startswith("fma") else name.split(".")[0]]
        registers[target] = makes(*map(value, operands)) & 0xFFFFFFFF
    return registers


def multiplied(dtype: np.dtype, *operands: int) -> int:
    """a · b + c of both halves, rounded once: 64 bits hold all that is exact in 16."""
    a, b, c = (np.asarray([each], np.uint32).view(dtype).astype(np.float64) for each in operands)
    return int((a * b + c).astype(dtype).view(np.uint32)[0])


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
    "or": lambda a, b: a | b,
    "lop3": by_table,
    "bf16x2": partial(multiplied, jnp.dtype("bfloat16")),
    "f16x2": partial(multiplied, jnp.dtype("float16")),
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
