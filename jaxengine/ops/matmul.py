"""The product of two matrices on a CPU, in the types and shapes that XLA has fast code for.

XLA has fast kernels (YNNPACK) for a product if both sides have one type, the left side has two rows or more, and the
result is f32, of f32 or bf16, or i32, of int8. For other combinations with a weight narrower than f32 it first writes
the whole weight as f32, in every step. A right side it packs into tiles, in every step too, so an f32 weight is the
left side. All products of the layers of a 135M model took (ms; 2 cores of an EPYC with AVX512-BF16; JAX 0.10.2):

    rows                      1     2     4     8    16    32    64   128   256
    f32 on the right         18    29    31    32    42    60   104   184   312
    f32 on the left          17    22    24    26    33    51    88   166   308

An int8 weight is multiplied in one of three ways (`Int8Products`), of which a processor's fastest is chosen
(`jaxengine/device.py`):

- few rows as integers: f32 activations become integers of 16 bits, which are two int8 numbers, and all sums are exact;
- as bf16, which holds int8 exactly: f32 activations become a sum of two bf16 numbers;
- as f32.

For the latter two the weight is cast a piece at a time, so that what is cast stays in the processor's cache: a step
reads the weight's own bytes from memory. With the weight on the right, all products, head included, took (an EPYC with
AVX512-BF16, and a Xeon with AVX512-VNNI whose memory is faster):

    rows                      1     2     4     8    16    32    64   256
    EPYC, int8 as f32        21    22          29    46         103   306
    int8 as bf16             17    17          23    38          98   298
    x in bf16 too            17    17          20    26          65   156
    Xeon, f32                31    40    58    59    84   132   105   311
    int8 as f32              40    60    60    65    81   130   112   319
    int8 as bf16             43    64    69    68    88   143   116   323
    int8 as integers         18    25    31    39    70   159   163   657
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.device import Int8Products

PIECE = 2**21  # elements that are cast at once; half and twice as many took a tenth longer
FEW = 16  # rows that are multiplied as integers
BYTE = 256  # steps of the lower byte in one of the upper
LARGEST = 127 * BYTE  # integer of 16 bits whose upper byte, rounded to nearest, is int8


def matmul(x: Array, weight: Array, dtype: jnp.dtype, int8_as: Int8Products = "f32") -> Array:
    """x [T, in] times `weight` [out, in] → [T, out] in `dtype`.

    Args:
        int8_as: how an int8 weight is multiplied. As integers and as bf16 the product knows 16 bits of each element of
            `x`: of the largest of its row, or of its own.
    """
    if weight.dtype == jnp.int8:
        return _int8_product(x, weight, int8_as).astype(dtype)
    if weight.dtype == jnp.bfloat16:
        return _dot(_two_rows(x).astype(weight.dtype), weight, jnp.dtype(jnp.float32))[: x.shape[0]].astype(dtype)
    return _dot(x, weight.astype(x.dtype), dtype)


def _int8_product(x: Array, weight: Array, int8_as: Int8Products) -> Array:
    """f32 [T, out]."""
    if int8_as == "integers" and len(x) <= FEW:
        return _product_of_integers(x.astype(jnp.float32), weight)
    if int8_as == "bf16":
        return _product_in_bf16(x, weight)
    return _in_pieces(x.astype(jnp.float32), weight, lambda piece: piece.astype(jnp.float32))


def _product_of_integers(x: Array, weight: Array) -> Array:
    """f32 [T, out] of f32 `x`. The i32 sums hold up to 130,000 inputs."""
    largest = jnp.abs(x).max(1, keepdims=True)  # [T, 1]; not finite if any element is not, like the row's result
    step = jnp.where(largest == 0, 1, largest / LARGEST)
    whole = jnp.rint(x / step)
    upper = jnp.floor(whole / BYTE + 0.5)  # the lower byte is then within -128 … 127
    both = jnp.concatenate([upper, whole - upper * BYTE]).astype(jnp.int8)  # [2T, in]
    upper, lower = jnp.split(_dot(both, weight, jnp.dtype(jnp.int32)).astype(jnp.float32), 2)
    return (upper * BYTE + lower) * step


def _product_in_bf16(x: Array, weight: Array) -> Array:
    if x.dtype == jnp.bfloat16:
        return _in_pieces(_two_rows(x), weight, _as_bf16)[: len(x)]
    x = x.astype(jnp.float32)
    upper = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)  # XLA would leave out a cast there and back
    both = jnp.concatenate([upper, x - upper]).astype(jnp.bfloat16)  # [2T, in]
    upper, lower = jnp.split(_in_pieces(both, weight, _as_bf16), 2)
    return upper + lower


def _in_pieces(x: Array, weight: Array, cast: Callable[[Array], Array]) -> Array:
    """f32 [T, out]. The last piece may compute some outputs again."""
    outputs = len(weight)
    pieces = -(-weight.size // PIECE)
    if pieces == 1:
        return _dot(x, cast(weight), jnp.dtype(jnp.float32))
    size = -(-outputs // pieces)

    def body(i: Array, y: Array) -> Array:
        first = jnp.minimum(i * size, outputs - size)
        piece = jax.lax.dynamic_slice_in_dim(weight, first, size)
        part = _dot(x, cast(piece), jnp.dtype(jnp.float32))  # [T, size]
        return jax.lax.dynamic_update_slice_in_dim(y, part, first, 1)

    return jax.lax.fori_loop(0, pieces, body, jnp.zeros((len(x), outputs), jnp.float32))


def _as_bf16(weight: Array) -> Array:
    """int8 as bf16: the upper half of f32's bits. XLA's own cast, which rounds, made a step of 8 rows 1.3x as long."""
    bits = jax.lax.bitcast_convert_type(weight.astype(jnp.float32), jnp.uint32)
    return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)


def _two_rows(x: Array) -> Array:
    """`x`, a single row twice."""
    return jnp.broadcast_to(x, (2, x.shape[1])) if x.shape[0] == 1 else x


def _dot(x: Array, weight: Array, dtype: jnp.dtype) -> Array:
    """In f32 the weight is the left side, which is read as it lies; XLA would pack a right side into tiles, in every
    step. The barriers keep it from exchanging the two, and what stands between two products turned as they are.
    """
    if weight.dtype != jnp.float32:
        return jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=dtype)
    turned = jax.lax.optimization_barrier(x.T)  # [in, T]
    product = jax.lax.dot_general(weight, turned, (((1,), (0,)), ((), ())), preferred_element_type=dtype)  # [out, T]
    return jax.lax.optimization_barrier(product).T
