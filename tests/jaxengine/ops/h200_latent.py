"""The attention kernels over latents compiled for an H200 that is not there. Run by `toolchain.run`."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.ops import AttentionBias, AttentionSpec, StepBatch, triton
from jaxengine.sharding import make_mesh
from tests.gpu_compile import h200
from tests.jaxengine.ops.h200_kernels import LAYERS, PAGE_SIZE, judge

PAGES, WIDTH = 65536, 512


def compile_step(
    *,
    heads: int,
    tokens: int,
    rows: int = 64,
    ragged: bool = False,
    rank: int = 512,
    rest: int = 64,
    cache_dtype: str = "bfloat16",
) -> dict[str, Any]:
    mesh = make_mesh(1, h200.devices(1))

    def array(*shape: int, dtype: str = "int32") -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    caches = [array(LAYERS, PAGES, PAGE_SIZE, 1, width, dtype=cache_dtype) for width in (rank, rest)]
    each = array(tokens)
    batch = StepBatch(each, each, each, each, each, array(rows, WIDTH), array(), ragged, layer=array())
    q_and_key = array(tokens, 1, heads + 1, rank + rest, dtype="bfloat16")
    attend = partial(triton.attend, spec=AttentionSpec(scale=0.1, latent=rank))
    bias = AttentionBias()
    lowered = jax.jit(attend, donate_argnums=(2, 3)).lower(q_and_key, None, *caches, batch, bias)
    return h200.once(judge, lowered, {})


STEPS = {
    "decode, 128 heads": partial(compile_step, heads=128, tokens=64),
    "decode, 20 heads": partial(compile_step, heads=20, tokens=64),
    "decode, 16 heads": partial(compile_step, heads=16, tokens=64),
    "mixed, 128 heads": partial(compile_step, heads=128, tokens=2048, ragged=True),
    "mixed, 16 heads": partial(compile_step, heads=16, tokens=2048, ragged=True),
    "mixed, 40 heads, rank 256": partial(compile_step, heads=40, tokens=2048, ragged=True, rank=256, rest=32),
    "mixed, fp8 cache": partial(compile_step, heads=16, tokens=2048, ragged=True, cache_dtype="float8_e4m3fn"),
}

if __name__ == "__main__":
    names = sys.argv[2:] or STEPS
    Path(sys.argv[1]).write_text(json.dumps({name: STEPS[name]() for name in names}, indent=1))
