"""Codes as numbers: by plain JAX, which is what an interpreted kernel computes, and by the PTX that a GPU runs."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops.packing import octets
from jaxengine.ops.triton.unpacking import assembly, octet_assembly, unpacked_octets
from jaxengine.weights.quantization import FP4
from tests.jaxengine.ops.ptx import run_ptx
from tests.jaxengine.ops.test_grouped import NF4, OCTETS, all_values


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
