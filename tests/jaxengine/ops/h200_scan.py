"""Steps of Falcon-Mamba 7B and its scan, compiled for an H200 that is not there. Run by `toolchain.run`."""

import dataclasses
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.ops.batch import ScanInputs, StepBatch
from jaxengine.ops.triton.scan import scan
from jaxengine.sharding import make_mesh, replicated
from tests.gpu_compile import h200, thunks
from tests.gpu_compile.ptxas import kernel
from tests.gpu_compile.steps import decode, mixed
from tests.shapes import FALCON_MAMBA_7B

LAYERS, CHANNELS, STATES, PAGES = 2, 8192, 16, 257
SPEC = dataclasses.replace(FALCON_MAMBA_7B, num_layers=LAYERS)
STEPS = {
    "decode": partial(decode, SPEC, 1),
    "mixed": partial(mixed, SPEC, 1),
    "decode_tp2": partial(decode, SPEC, 2),
}


def compile_scan(tokens: int, rows: int, ragged: bool, guesses: bool = False) -> dict[str, Any]:
    sharding = replicated(make_mesh(1, h200.devices(1)))

    def array(*shape: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    wide, narrow, each = array(tokens, CHANNELS), array(tokens, STATES), array(tokens, dtype=jnp.int32)
    inputs = ScanInputs(array(tokens, CHANNELS, dtype=jnp.bfloat16), wide, narrow, narrow, array(CHANNELS, STATES))
    tables, count = array(rows, 1, dtype=jnp.int32), array(dtype=jnp.int32)
    settled = array(rows, dtype=jnp.int32) if guesses else None
    batch = StepBatch(each, each, each, each, each, tables, count, ragged, layer=count, settled=settled)
    return h200.once(
        judge, jax.jit(scan, donate_argnums=1).lower(inputs, array(LAYERS, PAGES, CHANNELS, STATES), batch), {}
    )


def judge(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as dump:
        lowered.compile(compiler_options={**options, **h200.dumping(dump)})
        sequence = thunks.read(Path(dump))
        (path,) = (path for path in Path(dump).glob("*.ptx") if "state_scan" in path.read_text())
        return dataclasses.asdict(kernel(path, sequence)[1])


KERNELS = {
    "decode": partial(compile_scan, 128, 128, False),
    "mixed": partial(compile_scan, 2048, 256, True),
    "guesses": partial(compile_scan, 128, 32, True, guesses=True),
}

if __name__ == "__main__":
    made = {
        "steps": {name: dataclasses.asdict(step()) for name, step in STEPS.items()},
        "kernels": {name: each() for name, each in KERNELS.items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1))
