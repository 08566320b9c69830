"""The gated delta rule of one head over a chunk of tokens (Yang et al. 2024, arXiv 2412.06464, section 3.3).

With G_i the sum of the logarithms of decay up to token i of a chunk, and S the states in front of it,

    A_ij = β_i exp(G_i - G_j) (k_i · k_j)  for j < i             U = (I + A)⁻¹ β (V - exp(G) K S)
    y_i  = exp(G_i) q_i S + Σ_{j ≤ i} exp(G_i - G_j) (q_i · k_j) u_j
    S'   = exp(G_C) S + Σ_j exp(G_C - G_j) k_j ⊗ u_j

so a chunk is a handful of products, where token by token it would be C times two sums over the states, each waiting for
the one before. Plain JAX, which a kernel of a GPU computes for each of its programs, and a CPU for all heads at once.

Legend: C tokens of a chunk, D and V the dimensions of keys and values, or of a part of the values.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

CHUNK = 16  # tokens: the least that a product of a GPU takes
BLOCK = 8  # tokens whose matrix is inverted by squares; see `_inverse`
EPS = 1e-6  # beside the squares of a query or key, as in transformers' `l2norm` (qwen3_next)

Product = Callable[[Array, Array, int, int], Array]  # of two matrices, contracted over an axis of each


class Products(NamedTuple):
    """wide: of what is as long as a key. exact: of what is as long as a chunk, in f32."""

    wide: Product
    exact: Product


class Chunk(NamedTuple):
    """Tokens of one head, f32. Behind the last real one are zeros, which change nothing."""

    queries: Array  # [C, D]
    keys: Array  # [C, D]
    values: Array  # [C, V]
    decay: Array  # [C], the logarithm
    rate: Array  # [C]


def chunk_step(chunk: Chunk, s: Array, products: Products, size: int, corrects: bool = True) -> tuple[Array, Array]:
    """y [C, V] of the chunk's tokens, and the states s [D, V] behind it; `size` is D without padding. Where it does not
    correct, it is Mamba 2: U is β V, and queries and keys are taken as they are.
    """
    wide, exact = products
    queries, keys, values, decay, rate = chunk
    if corrects:
        queries = queries * (jax.lax.rsqrt((queries * queries).sum(1) + EPS) * size**-0.5)[:, None]
        keys = keys * jax.lax.rsqrt((keys * keys).sum(1) + EPS)[:, None]
    later, earlier = jnp.arange(CHUNK)[:, None], jnp.arange(CHUNK)[None, :]
    total = jnp.where(earlier <= later, decay[None, :], 0).sum(1)  # [C], G
    across = jnp.where(later <= earlier, decay[:, None], 0).sum(0)  # the same, for the other axis
    kept = jnp.exp(jnp.where(earlier <= later, total[:, None] - across[None, :], 0))
    u = rate[:, None] * values  # [C, V]
    if corrects:
        a = jnp.where(earlier < later, rate[:, None] * kept * wide(keys, keys, 1, 1), 0)
        known = jnp.exp(total)[:, None] * wide(keys, s, 1, 0)
        u = exact(_inverse(a, exact), u - rate[:, None] * known, 1, 0)
    scores = jnp.where(earlier <= later, kept * wide(queries, keys, 1, 1), 0)
    y = jnp.exp(total)[:, None] * wide(queries, s, 1, 0) + exact(scores, u, 1, 0)
    last = decay.sum()
    return y, s * jnp.exp(last) + wide(keys * jnp.exp(last - total)[:, None], u, 0, 0)


def _inverse(a: Array, product: Product) -> Array:
    """(I + a)⁻¹ [C, C] of `a`, which is 0 on and above the diagonal.

    Of each block on the diagonal (I - d)(I + d²)(I + d⁴), since d⁸ = 0; with these, t, and what lies below the blocks,
    b, it is t - t b t. Blocks are small because powers of d grow: where all keys are alike d⁴ has a 20, and of the
    whole chunk a⁸ would have 3432, which the others cancel.
    """
    later, earlier = jnp.arange(CHUNK)[:, None], jnp.arange(CHUNK)[None, :]
    within = later // BLOCK == earlier // BLOCK
    one = jnp.where(later == earlier, 1.0, 0.0)
    d, b = jnp.where(within, a, 0), jnp.where(within, 0, a)
    square = product(d, d, 1, 0)
    t = product(product(one - d, one + square, 1, 0), one + product(square, square, 1, 0), 1, 0)
    return t - product(product(t, b, 1, 0), t, 1, 0)
