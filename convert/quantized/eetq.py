"""EETQ: int8 with a scale for each output channel.

    weight  i8 [in, out]      weight_scales  floats [out]

The library's own files hold the weights in the order of a kernel, which depends on the GPU they were written on, with
128 added to each. Such a file is refused by name: its values lie around ±128 as integers of 8 bits, and those of a
matrix in order lie around 0.
"""

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.grouped import grouped
from convert.quantized.method import FLOATS, Method, Module

PARTS = (".weight_scales", ".weight")
SEEN = 64  # rows of a matrix that tell the order


def eetq(config: Config) -> Method:
    """The method, whatever `config` says: there is one."""
    return Method("eetq", PARTS[:1], PARTS, _open)


def _open(module: Module) -> QuantizedMatrix:
    inputs, outputs = module.axes(".weight", 2)
    module.expect(".weight", (inputs, outputs), "int8")
    module.expect(".weight_scales", (outputs,), *FLOATS)
    if np.median(np.abs(module.read(".weight", slice(0, SEEN)).astype(np.int16))) > 64:
        raise module.error(".weight", "is in the order of a GPU's kernel: serve the original with --quantize eetq")

    def values(rows: slice, columns: slice) -> np.ndarray:
        return module.read(".weight", columns, rows).T

    return grouped("int8", inputs, "int8", values, module.scales(".weight_scales")[:, None])
