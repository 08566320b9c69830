"""What other compiler options would make of decode steps: a few of the model's layers, compiled anew for each.

cuBLAS' kernels enter a step's CUDA graph by tracing, again whenever a buffer has moved, about 25 µs each; Triton's are
nodes whose parameters change. So a product that cuBLAS computes sooner may cost the host more than it wins.
"""

from dataclasses import replace

import jax

from tests.gpu.decode import fill, timed
from tests.gpu.engines import Client, compiled_with, measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

LAYERS = 8
WAYS: dict[str, dict[str, str | bool]] = {
    "ours": {},
    "no cuBLAS": {"xla_gpu_cublas_fallback": False},
    "every tile tried": {"xla_gpu_exhaustive_tiling_search": True},
    "no graph": {"xla_gpu_enable_command_buffer": ""},
}


def run(record: Record, scale: Scale) -> None:
    few = replace(scale.spec, num_layers=min(LAYERS, scale.spec.num_layers))
    short = replace(scale.brief(*scale.decode_rows), spec=few)
    for way, options in WAYS.items() if jax.default_backend() == "gpu" else [("ours", WAYS["ours"])]:
        with record.part(f"options: {way}"), compiled_with(options), measured_client(short) as client:
            for rows in short.decode_rows:
                measure(client, record, short, way, rows)


def measure(client: Client, record: Record, scale: Scale, way: str, rows: int) -> None:
    """A row of "options"."""
    [context] = scale.contexts
    crowd = client.submit(rows, context, scale.growth)
    fill(client, crowd)
    record.add("options", way=way, rows=rows, tokens=rows, **timed(client, scale.decode_steps))
    client.cancel(crowd)
