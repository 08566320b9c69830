"""GPU kernels, written in Pallas for its Triton back end, for NVIDIA GPUs from Ampere on.

This file is attention, which `latent` sets up otherwise where keys and values are made of latents; `experts` and `scan`
describe themselves. Two attention kernels share one inner loop (`tile`):

- `decode` computes rows of one query. Several programs each take some of a row's keys, and the last of them to finish
  merges the partial results.
- `prefill` computes rows of several queries. A program takes a tile of a row's queries.

A decode step runs `decode` alone, which also rotates and writes the step's own tokens. A mixed step first rotates and
writes (`projected`), then runs rows of one query through `decode` and the others through `prefill`. Lengths and page
tables are read on the device, so a step costs what its real lengths cost and uses no memory that depends on the table's
width. A NaN in a page's former content has no effect, because keys and values that no query sees are never loaded.

`norm` adds a branch to the residual stream and normalises the sum. With it a decode layer of a Llama is eight kernels:
four products, the activation, `decode` and twice `norm`; in few bits seven, since gate and up activate. With what
surrounds attention left to XLA it was 17 at batch 1 and 14 at 128 (JAX 0.10.2).

Pallas' Triton back end is deprecated; nothing outside this package uses it. The package uses only what is the same from
JAX 0.10.0 to 0.12.0: products are `lax.dot_general`, since `pl.dot` moved twice.

Lower bounds on an H200 (4.3 TB/s and 790 TFLOP/s measured) per layer of Llama-3.1-8B (K 8, G 4, D 128, bf16): decode
moves 4 KiB per cached token (128 rows of 1024 tokens: 512 MiB, 125 µs); its products take the tensor cores 9 % of that
time, with the 4 query rows padded to 16. Prefill of n tokens from position 0 computes 4·32·128·n²/2 operations (2048
tokens: 34 GFLOP, 44 µs) and moves 4 + 16 KiB a token (42 MB, 10 µs).
"""

from jax import Array
from jax.experimental import pallas as pl

from jaxengine.ops.batch import AttentionBias, RopeTables, StepBatch
from jaxengine.ops.spec import AttentionSpec
from jaxengine.ops.triton import latent
from jaxengine.ops.triton.decode import attend_rows, attend_step, read_step, single_rows
from jaxengine.ops.triton.latent import unsupported as unsupported_latent
from jaxengine.ops.triton.norm import add_norm
from jaxengine.ops.triton.prefill import attend_tiles
from jaxengine.ops.triton.rotated_qkv import project, write_all
from jaxengine.ops.triton.tile import Problem, flatten

__all__ = ["E4M3_CAPABILITY", "MIN_CAPABILITY", "add_norm", "attend", "read", "unsupported", "unsupported_latent"]

MIN_CAPABILITY = (8, 0)  # asynchronous copies and bf16 in the tensor cores
E4M3_CAPABILITY = (8, 9)  # e5m2 is half an f16 and needs nothing
MAX_HEAD_DIM = 512
MAX_HEAD_DIM_F32 = 256  # of 512, decode takes 130 KiB of shared memory and spills 6 KB
MAX_GROUP = 128  # a tile holds every query head of a key/value head
MAX_TILE = 128 * 128  # elements of such a tile; larger ones spill and leave no shared memory for keys
DTYPES = ("bfloat16", "float16", "float32")


def unsupported(head_dim: int, group: int, dtype: str) -> str:
    """Why the kernels cannot serve a model of these sizes; "" if they can."""
    if head_dim % 8 or not 16 <= head_dim <= MAX_HEAD_DIM:
        return f"triton supports head_dim 16 to {MAX_HEAD_DIM} in multiples of 8, the model has {head_dim}"
    if head_dim > MAX_HEAD_DIM_F32 and dtype == "float32":
        return f"triton supports head_dim up to {MAX_HEAD_DIM_F32} in {dtype}, the model has {head_dim}; use bfloat16"
    most = min(MAX_GROUP, MAX_TILE // pl.next_power_of_2(head_dim))
    if group > most:
        return f"triton supports up to {most} query heads of {head_dim} per key/value head, the model has {group}"
    if dtype not in DTYPES:
        return f"triton supports dtype {', '.join(DTYPES)}, got {dtype}"
    return ""


def attend(
    qkv: Array,
    rope_tables: RopeTables | None,
    keys: Array,
    values: Array,
    batch: StepBatch,
    bias: AttentionBias,
    spec: AttentionSpec,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """`jaxengine.ops.Ops.attend` on one device. The output is 0 for padding, whose keys and values are not written.

    Args:
        interpret: run the kernels as plain JAX, on any device.

    With a latent, queries and keys come rotated, and padding may be written to page 0.
    """
    if spec.latent:
        return latent.attend(qkv, keys, values, batch, bias, spec, interpret)
    tokens, kv_heads, rows, dim = qkv.shape
    _, pages, page_size, *_ = keys.shape
    furthest = 0 if bias.relative is None else bias.relative.shape[-1] // 2
    causal = batch.noncausal_length is None
    sizes = kv_heads, rows - 2, dim, pages, page_size
    problem = Problem(*sizes, qkv.dtype, spec, interpret, causal, furthest, batch.past_window)
    projected, inputs = project(qkv, rope_tables, batch), flatten(keys, values, batch, bias)
    if batch.ragged:
        q, flat_keys, flat_values = write_all(problem, projected, inputs, batch.tokens)
        inputs = inputs._replace(keys=flat_keys, values=flat_values)
        out = attend_tiles(problem, q, inputs, batch)
        if not batch.past_window:
            out = attend_rows(problem, q, inputs._replace(horizon=None), single_rows(batch), out)
    else:
        out, flat_keys, flat_values = attend_step(problem, projected, inputs, batch)
    out = out.reshape(tokens, kv_heads, problem.group, dim)
    return out, flat_keys.reshape(keys.shape), flat_values.reshape(values.shape)


def read(q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec, interpret: bool = False) -> Array:
    """`jaxengine.ops.Ops.read` on one device; 0 for padding."""
    _, kv_heads, group, dim = q.shape
    _, pages, page_size, *_ = keys.shape
    sizes = kv_heads, group, dim, pages, page_size
    problem = Problem(*sizes, q.dtype, spec, interpret, causal=batch.noncausal_length is None)
    flat, inputs = q.reshape(-1, dim), flatten(keys, values, batch, AttentionBias())
    if batch.ragged:
        out = attend_tiles(problem, flat, inputs, batch)
        out = attend_rows(problem, flat, inputs._replace(horizon=None), single_rows(batch), out)
    else:
        out = read_step(problem, flat, inputs, batch)
    return out.reshape(q.shape)
