"""What the products with weights in few bits wait for, by the GPU's own counters, as NVIDIA's `ncu` reads them.

`python -m tests.gpu.counters` makes each product once, and is what runs under `ncu`.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

from tests.gpu.copies import lowered
from tests.gpu.products import FULL, HELD, Shape, drawn
from tests.gpu.record import Record, Row
from tests.gpu.scale import Scale

FORMATS, TOKENS = ("int4", "int8", "fp8"), (1, 16, 128)
STALLS = (
    *("long_scoreboard", "short_scoreboard", "barrier", "wait", "math_pipe_throttle", "mio_throttle", "lg_throttle"),
    *("not_selected", "selected", "gmma", "membar", "dispatch_stall"),
)
SHARES = {  # of the most that there could be, in %
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "shared_memory": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "issued": "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
    "tensor_cores": "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "integers": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
METRICS = {
    "seconds": "gpu__time_duration.sum",
    "clock": "smsp__cycles_elapsed.avg.per_second",
    **SHARES,
    "instructions": "smsp__inst_executed.sum",
    **{stall: f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio" for stall in STALLS},
}
UNITS = {"seconds": 1e-9}  # of what `ncu` tells in base units
# Kernels one by one: `ncu` repeats each until it has read all counters. It leaves the device's clocks alone.
OPTIONS = ["--csv", "--page=raw", "--print-units=base", "--clock-control=none", "--kernel-name=regex:grouped"]

# `ncu` keeps all memory that a kernel can reach before it runs the first time. JAX would hold nearly all of a device's.
TAKES_LITTLE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def run(record: Record, scale: Scale) -> None:
    if scale.name != "full" or shutil.which("ncu") is None:  # JAX is not asked: it would take the device's memory here
        record.add("skipped", what="counters", why="takes an NVIDIA GPU and `ncu`")
        return
    with record.part("counters"), tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "told.csv"
        metrics = ",".join(METRICS.values())
        command = ["ncu", *OPTIONS, f"--metrics={metrics}", f"--log-file={told}", sys.executable, "-m", __name__]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **TAKES_LITTLE})
        products = [{"weights": name, "tokens": tokens, "shape": shape.name} for name, tokens, shape in cases()]
        text = told.read_text() if told.exists() else ""
        rows = list(read(text))
        if len(rows) != len(products):
            said = (done.stdout + done.stderr + text)[-600:]
            raise RuntimeError(f"ncu told of {len(rows)} products of {len(products)}: {said}")
        for product, counted in zip(products, rows, strict=True):
            record.add("waits", **product, **counted)


def cases() -> Iterator[tuple[str, int, Shape]]:
    return ((name, tokens, shape) for shape in FULL for name in FORMATS for tokens in TOKENS)


def read(text: str) -> Iterator[Row]:
    """A row of `METRICS` for each kernel, without those that this `ncu` does not know; its own lines begin with ==."""
    lines = [*csv.reader(line for line in text.splitlines() if not line.startswith("=="))]
    names = lines[0] if lines else []
    for kernel in lines[2:]:  # behind the units
        told = dict(zip(names, kernel, strict=True))
        found = {ours: told.get(theirs, "").replace(",", "") for ours, theirs in METRICS.items()}
        yield {ours: float(value) * UNITS.get(ours, 1) for ours, value in found.items() if value not in ("", "n/a")}


def main() -> None:
    """Nothing else that runs has a name like theirs."""
    for name, tokens, shape in cases():
        weight = drawn(shape, HELD[name])
        x = jax.random.normal(jax.random.key(tokens), (tokens, shape.inputs), jnp.bfloat16)
        program = lowered([weight], x).compile({"xla_gpu_enable_command_buffer": ""})
        jax.block_until_ready(program([weight], x))


if __name__ == "__main__":
    main()
