"""Weights in 4 bits that number the entries of a table, as `quantised` measures the others."""

import jax

from jaxengine.weights.quantization import FOUR_BITS
from tests.gpu.quantised import measure
from tests.gpu.record import Record
from tests.gpu.scale import Scale


def run(record: Record, scale: Scale) -> None:
    if jax.default_backend() != "gpu":
        record.add("skipped", what="tables", why="only kernels for NVIDIA GPUs read them")
        return
    measure(record, scale, [name for name, format in FOUR_BITS.items() if format.table])
