"""Attention over latents (`architecture.latent`) by the same two kernels: one head of keys, whose first part is the
value.

All query heads read one key, and with hundreds of elements a tile cannot hold them all. So several tiles share the
keys, each with its part of the heads; what one has read, the others find in the L2 cache. Queries come rotated, and XLA
writes the step's own latents to their pages before the kernels start.

Lower bound on an H200 per layer of DeepSeek V3 (R 512, P 64, bf16): 1152 bytes a cached token, a seventieth of what its
keys and values would take, and 2·128·(576 + 512) operations, which are 242 a byte: with all heads on one device the
tensor cores are the limit, not the memory. None of this has been timed.

Legend: as in `tile`.
"""

from jax import Array

from jaxengine.ops.batch import AttentionBias, StepBatch
from jaxengine.ops.cache import split, write
from jaxengine.ops.spec import AttentionSpec
from jaxengine.ops.triton.decode import attend_rows, read_step, single_rows
from jaxengine.ops.triton.prefill import attend_tiles
from jaxengine.ops.triton.tile import Problem, flatten

MOST_HEADS = 32  # of a tile: so many by 512 elements, and their sums in f32, are what a program can hold
MAX_RANK, MAX_REST = 512, 64
DTYPES = ("bfloat16", "float16")


def unsupported(rank: int, rest: int, dtype: str) -> str:
    """Why the kernels cannot serve a model of these sizes; "" if they can."""
    for name, size, most in (("rank", rank, MAX_RANK), ("rope_dim", rest, MAX_REST)):
        if size % 8 or not 16 <= size <= most:
            return f"triton supports latents of {name} 16 to {most} in multiples of 8, the model has {size}"
    return "" if dtype in DTYPES else f"triton supports latents of dtype {', '.join(DTYPES)}, got {dtype}"


def heads_of_tile(group: int) -> int:
    """The largest divisor of `group` that a tile can hold."""
    return max(n for n in range(1, min(group, MOST_HEADS) + 1) if group % n == 0)


def attend(
    q_and_key: Array,
    keys: Array,
    values: Array,
    batch: StepBatch,
    bias: AttentionBias,
    spec: AttentionSpec,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """`jaxengine.ops.Ops.attend` on one device, where `spec` has a latent and queries and keys are rotated."""
    q, latent, rest = split(q_and_key, None, spec)
    keys, values = write(keys, latent, batch), write(values, rest, batch)
    tokens, cached_heads, group, _ = q.shape
    _, pages, page_size, *_ = keys.shape
    heads = heads_of_tile(group)
    problem = Problem(
        cached_heads * (group // heads),
        heads,
        spec.latent,
        pages,
        page_size,
        q.dtype,
        spec,
        interpret,
        causal=batch.noncausal_length is None,
        past_window=batch.past_window,
        rest=rest.shape[-1],
        sharing=group // heads,
    )
    flat, inputs = q.reshape(-1, q.shape[-1]), flatten(keys, values, batch, bias)
    if batch.ragged:
        out = attend_tiles(problem, flat, inputs, batch)
        if not batch.past_window:
            out = attend_rows(problem, flat, inputs._replace(horizon=None), single_rows(batch), out)
    else:
        out = read_step(problem, flat, inputs, batch)
    return out.reshape(tokens, cached_heads, group, spec.latent), keys, values
