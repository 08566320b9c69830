"""Stored values as numbers for the tensor cores: 8 bits, or codes of 4 or 8 in planes (`jaxengine/ops/packing.py`).

Codes of 4 bits become numbers by two instructions of PTX for two of them: a shift, and a `lop3` that keeps a nibble and
puts the exponent of 128 (bf16) or 1024 (f16) above it. What Triton makes of shifts and casts takes 4.8 to 7.9
instructions a weight; the H200 has time for 3.5 while it reads 4 bits (4.3 TB/s, 132 SMs at 1.75 GHz).

Codes of 8 bits take three to five for two. A code 0 … 255 is the bits of a bf16: the exponents 0 and 1 have the same
last place, so that number is the code times 2^-133, and a power of two away. So is an fp8 number with its bits below a
longer exponent. The multiplications, `fma` of bf16x2 and f16x2, keep numbers below the smallest
normal one.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas import triton as plt

EXPONENT = {"bfloat16": (0x4300, 128), "float16": (0x6400, 1024)}  # bits above a nibble, and the number they add
NIBBLES = "0x000F000F"
RAISED = {"int8": 128}  # what is added to values so that no code has a sign
FP8 = {"float8_e4m3fn": (3, 7), "float8_e5m2": (2, 15)}  # bits behind the point, and what is added to the exponent


def fma(a: Array, b: Array, c: Array, interpret: bool) -> Array:
    """f32: a · b + c, rounded once. XLA would leave a multiplication and an addition."""
    if interpret:
        return a * b + c
    shape = jnp.broadcast_shapes(a.shape, b.shape, c.shape)
    (made,) = plt.elementwise_inline_asm(
        "fma.rn.f32 $0, $1, $2, $3;",
        args=[jnp.broadcast_to(each, shape) for each in (a, b, c)],
        constraints="=f,f,f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(shape, jnp.float32)],
    )
    result: Array = made
    return result


def plain(values: Array, base: Any, dtype: jnp.dtype) -> Array:
    """`dtype`: 8-bit values less their zero points `base`, exact."""
    numbers = values.astype(dtype)
    return numbers if isinstance(base, int) and base == 0 else numbers - _as(base, dtype)


def unpacked_octets(words: Array, plane: int, base: Any, values: str, dtype: jnp.dtype, interpret: bool) -> Array:
    """`dtype`: a plane's 8-bit numbers, which were of the dtype `values`, less their zero points `base`, exact."""
    if interpret or dtype.name not in EXPONENT:
        numbers = _from_octets((words.astype(jnp.int32) >> (8 * plane)) & 255, values).astype(dtype)
    else:
        (numbers,) = plt.elementwise_inline_asm(
            octet_assembly(plane, values, dtype),
            args=[words],
            constraints="=r,r",
            pack=2,
            result_shape_dtypes=[jax.ShapeDtypeStruct(words.shape, dtype)],
        )
    return plain(numbers, base, dtype)


def octet_assembly(plane: int, values: str, dtype: jnp.dtype) -> str:
    """PTX that makes two numbers of 16 bits, `$0`, of byte `plane` of two words, `$1`."""
    if values in FP8:
        return _fp8_asm(plane, values, dtype)
    codes = "prmt.b32 t, $1, 0, 0x4341;" if plane else "and.b32 t, $1, 0x00FF00FF;"
    down = -float(RAISED.get(values, 0))
    if dtype.name == "float16":
        bits, added = EXPONENT["float16"]
        made = f"or.b32 t, t, 0x{bits:04X}{bits:04X}; {_fma('$0', dtype, 1.0, down - added)}"
    else:
        made = f"{_fma('t', dtype, 2.0**127)} {_fma('$0', dtype, 2.0**6, down)}"
    return f"{{ .reg .b32 t, f, a; {codes} {made} }}"


def _fp8_asm(plane: int, values: str, dtype: jnp.dtype) -> str:
    """The sign stays the first bit of 16, the others go as far back as the exponent is longer. NaN and infinity become
    the finite numbers that follow: no weight is one.
    """
    fraction, bias = FP8[values]
    ours, exponent = (10, 15) if dtype.name == "float16" else (7, 127)
    back = 8 - ours + fraction
    if not back:  # f16 begins with the bits of e5m2
        return "and.b32 $0, $1, 0xFF00FF00;" if plane else "prmt.b32 $0, $1, 0, 0x2404;"
    word, moved = ("$1", "") if plane else ("t", "prmt.b32 t, $1, 0, 0x2404;")
    mask = 0x7F00 >> back
    return f"""{{
        .reg .b32 t, u, f, a;  {moved}
        shr.b32 u, {word}, {back};  and.b32 u, u, 0x{mask:04X}{mask:04X};
        lop3.b32 t, {word}, 0x80008000, u, 0xEA;
        {_fma("$0", dtype, 2.0 ** (exponent - bias))}
    }}"""


def _fma(to: str, dtype: jnp.dtype, factor: float, added: float = 0.0) -> str:
    """Numbers `t` times `factor`, and `added`, which takes no constant but in a register. To add -0 changes nothing."""
    kind = {"bfloat16": "bf16x2", "float16": "f16x2"}[dtype.name]
    constants = f"mov.b32 f, {_twice(factor, dtype)}; mov.b32 a, {_twice(added or -0.0, dtype)};"
    return f"{constants} fma.rn.{kind} {to}, t, f, a;"


def _twice(number: float, dtype: jnp.dtype) -> str:
    """A number of 16 bits in both halves of a register."""
    half = int(np.asarray(number, np.float32).astype(dtype).view(np.uint16))
    return f"0x{half:04X}{half:04X}"


def _from_octets(codes: Array, values: str) -> Array:
    """f32 of codes, i32, by arithmetic that Triton knows for any type; processors may take tiny f32 for 0."""
    if values not in FP8:
        return (codes - RAISED.get(values, 0)).astype(jnp.float32)
    fraction, bias = FP8[values]
    bits = codes & 127
    normal = jax.lax.bitcast_convert_type((bits << (23 - fraction)) + ((127 - bias) << 23), jnp.float32)
    tiny = bits.astype(jnp.float32) * 2.0 ** (1 - bias - fraction)
    size = jnp.where(bits < 1 << fraction, tiny, normal)
    return jnp.where(codes > 127, -size, size)


def unpacked(words: Array, plane: int, base: Any, table: tuple[float, ...], dtype: jnp.dtype, interpret: bool) -> Array:
    """`dtype`: what a plane's codes of 4 bits are, exact: less their zero points `base`, or entries of `table`."""
    if interpret or dtype.name not in EXPONENT:
        codes = (words.astype(jnp.int32) >> (4 * plane)) & 15
        return _looked_up(table, codes, dtype) if table else codes.astype(dtype) - _as(base, dtype)
    asm, added = assembly(plane, table, dtype)
    registers = 2 if table else 1  # of two numbers, which the instructions make at once
    (raised,) = plt.elementwise_inline_asm(
        asm,
        args=[words],
        constraints=",".join(["=r"] * registers + ["r"] * registers),
        pack=2 * registers,
        result_shape_dtypes=[jax.ShapeDtypeStruct(words.shape, dtype)],
    )
    return raised if table else raised - _as(base, dtype, added)


def assembly(plane: int, table: tuple[float, ...], dtype: jnp.dtype) -> tuple[str, int]:
    """PTX that makes numbers of 16 bits of nibble `plane` of words; and what it adds to them.

    Two numbers, `$0`, of the words in `$1`; where there is a table four, `$0` and `$1`, of those in `$2` and `$3`.
    """
    if table:
        return _table_asm(plane, table, dtype), 0
    bits, added = EXPONENT[dtype.name]
    return (
        f"{{ .reg .b32 t; {_shift('t', '$1', 4 * plane)} lop3.b32 $0, t, {NIBBLES}, 0x{bits:04X}{bits:04X}, 0xEA; }}",
        added,
    )


def _shift(to: str, word: str, right: int) -> str:
    if not right:
        return f"mov.b32 {to}, {word};"
    return f"shr.b32 {to}, {word}, {right};" if right > 0 else f"shl.b32 {to}, {word}, {-right};"


def _table_asm(plane: int, table: tuple[float, ...], dtype: jnp.dtype) -> str:
    """Bytes of four entries are permuted into place at once (`prmt`): low and high bytes of entries 0 to 7 and 8 to 15
    by three bits of each code, then those that its fourth bit chooses. Where entries 8 to 15 are 0 to 7 negated, the
    fourth bit is the sign. As compiled for an H200, a product with one token takes 6.7 instructions a weight, of which
    3.5 are for the ALU, and 10.2 with two entries at once.
    """
    entries = np.asarray(table, np.float32).astype(dtype).view(np.uint16)
    (low_a, low_b), (high_a, high_b) = (_registers((entries >> shift & 255).tolist()) for shift in (0, 8))
    chosen = f"""
        prmt.b32 c, {low_b}, a;  prmt.b32 e, {high_b}, a;
        prmt.b32 f, f, f, 0xB9A8;  // bytes of ones where the fourth bit is set
        lop3.b32 b, f, c, b, 0xCA;  lop3.b32 d, f, e, d, 0xCA;
    """
    signed = "prmt.b32 f, f, f, 0x3120;  lop3.b32 d, f, 0x80808080, d, 0xEA;"
    symmetric = all(low == -high for low, high in zip(table[:8], table[8:], strict=True))
    return f"""{{
        .reg .b32 t, a, b, c, d, e, f;
        {_shift("t", "$2", 4 * plane)}  {_shift("f", "$3", 4 * plane - 8)}
        lop3.b32 t, t, f, 0x00FF00FF, 0xE4;  and.b32 t, t, 0x0F0F0F0F;  // codes 0, 2, 1, 3, a byte each
        shr.b32 a, t, 12;  lop3.b32 a, t, a, 0x7777, 0xA8;  // 3 bits of each code, as a selector
        shl.b32 f, t, 4;
        prmt.b32 b, {low_a}, a;  prmt.b32 d, {high_a}, a;
        {signed if symmetric else chosen}
        prmt.b32 $0, b, d, 0x5140;  prmt.b32 $1, b, d, 0x7362;
    }}"""


def _registers(octets: list[int]) -> tuple[str, str]:
    """16 bytes as operands of two `prmt`, eight each."""
    words = [sum(octet << (8 * place) for place, octet in enumerate(octets[i : i + 4])) for i in range(0, 16, 4)]
    return f"0x{words[0]:08X}, 0x{words[1]:08X}", f"0x{words[2]:08X}, 0x{words[3]:08X}"


def _looked_up(table: tuple[float, ...], codes: Array, dtype: jnp.dtype) -> Array:
    numbers = jnp.zeros(codes.shape, jnp.float32)
    for code, entry in enumerate(table):
        numbers = jnp.where(codes == code, entry, numbers)
    return numbers.astype(dtype)


def _as(base: Any, dtype: jnp.dtype, added: int = 0) -> Any:
    """A zero point and what was added to the codes, in `dtype`."""
    return (
        jnp.asarray(base + added, dtype) if isinstance(base, int) else (base.astype(jnp.float32) + added).astype(dtype)
    )
