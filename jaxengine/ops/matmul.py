"""The product of two matrices on a CPU, in the types and shapes that XLA has fast code for.

XLA has fast kernels (YNNPACK) for a product if both sides have one type, the left side has two rows or more, and the
result is f32, of f32 or bf16. For other combinations with a weight narrower than f32 it first writes the whole weight
as f32, in every step.

An int8 weight is cast here, a piece at a time, so that what is cast stays in the processor's cache: a step reads the
weight's own bytes from memory. Where the processor multiplies bf16, int8 becomes bf16, which loses nothing, and f32
activations become a sum of two bf16 numbers; elsewhere both are f32. All products of a 135M model, head included, took
(ms; 2 cores of an EPYC with AVX512-BF16; JAX 0.10.2):

    rows                 1     2     8    16    64   256
    f32                 20    35    40    50   112   311
    int8 as f32         21    22    29    46   103   306
    int8 as bf16        17    17    23    38    98   298
    x in bf16 too       17    17    20    26    65   156
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

PIECE = 2**21  # elements that are cast at once; half and twice as many took a tenth longer


def matmul(x: Array, weight: Array, axis: int, dtype: jnp.dtype, bf16: bool = False) -> Array:
    """x [T, in] times `weight`, [in, out] if `axis` is 0, [out, in] if it is 1 → [T, out] in `dtype`.

    Args:
        bf16: whether the processor multiplies bf16. An int8 weight's product then knows 16 bits of each element of `x`.
    """
    if weight.dtype == jnp.int8:
        product = _product_in_bf16 if bf16 else _product_in_f32
        return product(x, weight, axis).astype(dtype)
    if weight.dtype == jnp.bfloat16:
        return _dot(_two_rows(x).astype(weight.dtype), weight, axis, jnp.dtype(jnp.float32))[: len(x)].astype(dtype)
    return _dot(x, weight.astype(x.dtype), axis, dtype)


def _product_in_f32(x: Array, weight: Array, axis: int) -> Array:
    return _in_pieces(x.astype(jnp.float32), weight, axis, lambda piece: piece.astype(jnp.float32))


def _product_in_bf16(x: Array, weight: Array, axis: int) -> Array:
    if x.dtype == jnp.bfloat16:
        return _in_pieces(_two_rows(x), weight, axis, _as_bf16)[: len(x)]
    x = x.astype(jnp.float32)
    high = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)  # XLA would leave out a cast there and back
    both = jnp.concatenate([high, x - high]).astype(jnp.bfloat16)  # [2T, in]
    high, low = jnp.split(_in_pieces(both, weight, axis, _as_bf16), 2)
    return high + low


def _in_pieces(x: Array, weight: Array, axis: int, cast: Callable[[Array], Array]) -> Array:
    """f32 [T, out]. The last piece may compute some outputs again."""
    outputs = weight.shape[1 - axis]
    pieces = -(-weight.size // PIECE)
    if pieces == 1:
        return _dot(x, cast(weight), axis, jnp.dtype(jnp.float32))
    size = -(-outputs // pieces)

    def body(i: Array, y: Array) -> Array:
        first = jnp.minimum(i * size, outputs - size)
        piece = jax.lax.dynamic_slice_in_dim(weight, first, size, 1 - axis)
        part = _dot(x, cast(piece), axis, jnp.dtype(jnp.float32))  # [T, size]
        return jax.lax.dynamic_update_slice_in_dim(y, part, first, 1)

    return jax.lax.fori_loop(0, pieces, body, jnp.zeros((len(x), outputs), jnp.float32))


def _as_bf16(weight: Array) -> Array:
    """int8 as bf16: the upper half of f32's bits. XLA's own cast, which rounds, made a step of 8 rows 1.3x as long."""
    bits = jax.lax.bitcast_convert_type(weight.astype(jnp.float32), jnp.uint32)
    return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)


def _two_rows(x: Array) -> Array:
    """`x`, a single row twice."""
    return jnp.broadcast_to(x, (2, x.shape[1])) if len(x) == 1 else x


def _dot(x: Array, weight: Array, axis: int, dtype: jnp.dtype) -> Array:
    return jax.lax.dot_general(x, weight, (((1,), (axis,)), ((), ())), preferred_element_type=dtype)
