"""The gated delta rule of Qwen3.5-27B and Mamba 2 of Granite 4 Small, compiled for an H200 that is not there.

Run by `toolchain.run`.
"""

import dataclasses
import json
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.ops.batch import DeltaInputs, StepBatch
from jaxengine.ops.triton.delta_rule import delta_rule
from jaxengine.sharding import make_mesh, replicated
from tests.gpu_compile import h200, thunks
from tests.gpu_compile.ptxas import kernel

LAYERS, SLOTS, HEADS, GROUP, DIM = 2, 257, 16, 3, 128
MAMBA_HEADS = 128, 64  # and their dimension; they share one B and one C of `DIM`


@cache
def one_device() -> Any:
    return replicated(make_mesh(1, h200.devices(1)))


def array(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=one_device())


def batch_of(tokens: int, rows: int, guesses: bool) -> StepBatch:
    each, tables, count = array(tokens, dtype=jnp.int32), array(rows, 1, dtype=jnp.int32), array(dtype=jnp.int32)
    settled = array(rows, dtype=jnp.int32) if guesses else None
    return StepBatch(each, each, each, each, each, tables, count, tokens != rows, layer=count, settled=settled)


def compile_rule(tokens: int, rows: int, dtype: Any = jnp.bfloat16, guesses: bool = False) -> dict[str, Any]:
    keys, of_head = array(tokens, HEADS, DIM, dtype=dtype), array(tokens, HEADS, GROUP)
    inputs = DeltaInputs(keys, keys, array(tokens, HEADS, GROUP, DIM, dtype=dtype), of_head, of_head)
    states = array(LAYERS, SLOTS, HEADS, GROUP, DIM, DIM)
    batch = batch_of(tokens, rows, guesses)
    return h200.once(judge, jax.jit(delta_rule, donate_argnums=1).lower(inputs, states, batch), {})


def compile_mamba2(tokens: int, rows: int, dtype: Any = jnp.bfloat16, guesses: bool = False) -> dict[str, Any]:
    heads, width = MAMBA_HEADS
    shared, of_head = array(tokens, 1, DIM, dtype=dtype), array(tokens, 1, heads)
    inputs = DeltaInputs(shared, shared, array(tokens, 1, heads, width, dtype=dtype), of_head, of_head)
    rule = partial(delta_rule, corrects=False)
    states = array(LAYERS, SLOTS, 1, heads, DIM, width)
    return h200.once(judge, jax.jit(rule, donate_argnums=1).lower(inputs, states, batch_of(tokens, rows, guesses)), {})


def judge(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as dump:
        lowered.compile(compiler_options={**options, **h200.dumping(dump)})
        sequence = thunks.read(Path(dump))
        (path,) = (
            path for path in Path(dump).glob("*.ptx") if any(name in path.read_text() for name in ("delta_", "mamba2"))
        )
        return dataclasses.asdict(kernel(path, sequence)[1])


KERNELS = {
    "decode": partial(compile_rule, 128, 128),
    "chunks": partial(compile_rule, 2048, 256),
    "chunks in f32": partial(compile_rule, 2048, 256, jnp.float32),
    "mamba 2 decode": partial(compile_mamba2, 128, 128),
    "mamba 2 chunks": partial(compile_mamba2, 2048, 256),
    "guesses": partial(compile_rule, 128, 32, guesses=True),
    "mamba 2 guesses": partial(compile_mamba2, 128, 32, guesses=True),
}

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({name: each() for name, each in KERNELS.items()}, indent=1))
