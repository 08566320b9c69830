"""Paged attention as Pallas kernels on the Triton back end, for NVIDIA GPUs from Ampere on.

Two kernels share one inner loop (`tile`): `decode` gives a row of one query to several programs, each a share of its
keys, and merges their partial results; `prefill` gives a program a tile of a row's queries. A mixed step runs both:
rows of one query through `decode`, the others through `prefill`. Lengths and page tables are read on the device, so a
step costs what its real lengths cost, and no memory is used that depends on the width of the table. A NaN in a page's
former content reaches nobody: what no query may see is never loaded.

Pallas' Triton back end is deprecated; nothing outside this package uses it. Only its parts that are the same from JAX
0.10.0 to 0.12.0 are used: products are `lax.dot_general`, since `pl.dot` moved twice.

Floors on an H200, per layer of Llama-3.1-8B (K 8, G 4, D 128, bf16), 4.3 TB/s and 790 TFLOP/s measured: decode moves
4 KiB per cached token (128 rows of 1024 tokens: 512 MiB, 125 µs) and its products take the tensor cores 9 % of that
time, the 4 query rows being padded to 16. Prefill of n tokens from 0 computes 4·32·128·n²/2 operations (2048 tokens:
34 GFLOP, 44 µs) and moves 4 + 16 KiB a token (42 MB, 10 µs).
"""

from jax import Array

from jaxengine.ops.batch import AttentionBatch, HeadTerms
from jaxengine.ops.spec import AttentionSpec
from jaxengine.ops.triton.decode import attend_rows, rows_of_step, single_rows
from jaxengine.ops.triton.prefill import attend_tiles
from jaxengine.ops.triton.tile import Problem, flatten

__all__ = ["MIN_CAPABILITY", "attention", "unsupported"]

MIN_CAPABILITY = (8, 0)  # asynchronous copies and bf16 in the tensor cores
MAX_HEAD_DIM = 256
MAX_GROUP = 128  # a tile holds every query head of a key/value head
DTYPES = ("bfloat16", "float16", "float32")


def unsupported(head_dim: int, group: int, dtype: str) -> str:
    """Why the kernels cannot serve such a model, or ""."""
    if head_dim % 8 or not 16 <= head_dim <= MAX_HEAD_DIM:
        return f"triton supports head_dim 16 to {MAX_HEAD_DIM} in multiples of 8, the model has {head_dim}"
    if group > MAX_GROUP:
        return f"triton supports up to {MAX_GROUP} query heads per key/value head, the model has {group}"
    if dtype not in DTYPES:
        return f"triton supports dtype {', '.join(DTYPES)}, got {dtype}"
    return ""


def attention(
    q: Array,
    keys: Array,
    values: Array,
    batch: AttentionBatch,
    spec: AttentionSpec,
    heads: HeadTerms,
    interpret: bool = False,
) -> Array:
    """q [T, K, G, D], keys and values [pages, page_size, K, D] → [T, K, G, D] in q's dtype; 0 for padding.

    Args:
        interpret: run the kernels as plain JAX, on any device.
    """
    kv_heads, group, dim = q.shape[1:]
    problem = Problem(kv_heads, group, dim, keys.shape[1], q.dtype, spec, interpret)
    inputs = flatten(q, keys, values, batch, heads)
    if batch.ragged:
        out = attend_tiles(problem, inputs, batch)
        out = attend_rows(problem, inputs, single_rows(batch), out)
    else:
        out = attend_rows(problem, inputs, rows_of_step(batch), None)
    return out.reshape(q.shape)
