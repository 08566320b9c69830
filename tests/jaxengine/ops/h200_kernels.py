"""The attention kernels compiled for an H200 that is not there, and what ptxas says of each. Run by `toolchain.run`."""

import dataclasses
import json
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.ops import AttentionBias, AttentionSpec, RopeTables, StepBatch, triton
from jaxengine.sharding import make_mesh
from tests.gpu_compile import h200, thunks
from tests.gpu_compile.ptxas import Kernel, kernel

POOL = 48 << 30  # bytes of keys, and of values; kernels count elements of more than 4 GiB in 64 bits
PAGE_SIZE, LAYERS = 16, 4
OURS = re.compile(r"\.entry (paged_|rotate_)")
PLAIN, GEMMA = AttentionSpec(), AttentionSpec(window=4096, softcap=50.0)


@dataclasses.dataclass(frozen=True)
class Facts:
    temporaries: int  # bytes
    launched: list[str]
    kernels: dict[str, Kernel]


def compile_step(
    *,
    tokens: int,
    rows: int,
    width: int,
    ragged: bool = False,
    kv_heads: int = 8,
    group: int = 4,
    dim: int = 128,
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
    spec: AttentionSpec = PLAIN,
    biased: bool = False,
    relative: bool = False,
    images: bool = False,
    tower: bool = False,
    pool: int = POOL,
) -> dict[str, Any]:
    mesh = make_mesh(1, h200.devices(1))

    def array(*shape: int, dtype: str = "int32") -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    stored = cache_dtype or dtype
    page_bytes = PAGE_SIZE * kv_heads * dim * jnp.dtype(stored).itemsize
    cache = array(LAYERS, pool // page_bytes // LAYERS, PAGE_SIZE, kv_heads, dim, dtype=stored)
    each = array(tokens)
    batch = StepBatch(each, each, each, each, each, array(rows, width), array(), ragged, layer=array())
    per_head = array(kv_heads, group, dtype="float32")
    bias = AttentionBias(per_head, per_head) if biased else AttentionBias()
    if relative:
        batch = dataclasses.replace(batch, noncausal_length=each if ragged else None)
        bias = AttentionBias(relative=array(kv_heads, group, 257, dtype="float32"))
    if tower:
        batch = dataclasses.replace(batch, noncausal_length=each)
    if images:
        batch = dataclasses.replace(batch, horizon=each)
    qkv = array(tokens, kv_heads, group + 2, dim, dtype=dtype)
    angle = array(tokens, dim // 2, dtype="float32")
    lowered = jax.jit(partial(triton.attend, spec=spec), donate_argnums=(2, 3)).lower(
        qkv, RopeTables(angle, angle), cache, cache, batch, bias=bias
    )
    return h200.once(judge, lowered, {})


def judge(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as dump:
        compiled = lowered.compile(compiler_options={**options, **h200.dumping(dump)})
        sequence = thunks.read(Path(dump))
        kernels = dict(kernel(path, sequence) for path in Path(dump).glob("*.ptx") if OURS.search(path.read_text()))
    memory = compiled.memory_analysis()
    assert memory is not None
    return dataclasses.asdict(Facts(memory.temp_size_in_bytes, thunks.launched(sequence), kernels))


STEPS = {
    "decode 1, narrow table": partial(compile_step, tokens=1, rows=1, width=512),
    "decode 128, narrow table": partial(compile_step, tokens=128, rows=128, width=512),
    "decode 128, wide table": partial(compile_step, tokens=128, rows=128, width=8192),
    "decode 64, head_dim 256": partial(compile_step, tokens=64, rows=64, width=512, dim=256, group=2, spec=GEMMA),
    "decode 64, fp8 cache": partial(compile_step, tokens=64, rows=64, width=512, cache_dtype="float8_e4m3fn"),
    "decode 64, f32": partial(compile_step, tokens=64, rows=64, width=512, dtype="float32"),
    "mixed 2048, narrow table": partial(compile_step, tokens=2048, rows=256, width=512, ragged=True),
    "mixed 2048, wide table": partial(compile_step, tokens=2048, rows=256, width=8192, ragged=True),
    "head_dim 64": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, dim=64, group=8, biased=True),
    "head_dim 80": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, dim=80, group=1, kv_heads=32),
    "head_dim 96, f16": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, dim=96, dtype="float16"),
    "head_dim 256": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, dim=256, spec=GEMMA),
    "decode 64, head_dim 512": partial(compile_step, tokens=64, rows=64, width=512, dim=512, kv_heads=4, group=8),
    "head_dim 512": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, dim=512, kv_heads=4, group=8),
    "1 GiB of keys": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, pool=1 << 30),
    "48 heads a key": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, kv_heads=1, group=48),
    "71 heads a key": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, kv_heads=1, group=71, dim=64),
    "fp8 cache": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, cache_dtype="float8_e4m3fn"),
    "encoder": partial(compile_step, tokens=512, rows=64, width=32, ragged=True, dim=64, group=1, relative=True),
    "decoder with relative positions": partial(compile_step, tokens=64, rows=64, width=32, dim=64, relative=True),
    "images": partial(compile_step, tokens=2048, rows=64, width=512, ragged=True, images=True),
    "images, head_dim 256": partial(
        compile_step, tokens=512, rows=64, width=512, ragged=True, dim=256, spec=GEMMA, images=True
    ),
    "tower, head_dim 72": partial(
        compile_step, tokens=4096, rows=64, width=64, ragged=True, dim=72, group=1, kv_heads=16, tower=True
    ),
    "tower, head_dim 80, windows": partial(
        compile_step, tokens=4096, rows=512, width=1, ragged=True, dim=80, group=1, kv_heads=16, tower=True
    ),
    "f32": partial(compile_step, tokens=512, rows=64, width=512, ragged=True, dtype="float32"),
}

if __name__ == "__main__":
    made = {name: step() for name, step in STEPS.items()}
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1))
