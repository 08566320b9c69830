"""MXFP4 as gpt-oss has it: all experts of a layer in one tensor, with an axis of its own for the groups of a row.

    NAME_blocks  u8 [experts, out, groups, 16], two codes in a byte      NAME_scales  u8 [experts, out, groups]

See `fp4` for the numbers. NAME is the parameter itself, which checkpoints in floats have turned: [experts, in, out].
"""

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import nibbles
from convert.quantized.fp4 import E2M1, MX_GROUP, check_powers, powers_of_two
from convert.quantized.method import Method, Module
from jaxengine.architecture.weight_format import Component, WeightFormat

PARTS = CODES, SCALES = ("_blocks", "_scales")
OCTETS = MX_GROUP // 2
FORMAT = WeightFormat("mxfp4", "uint8", "bfloat16", group=MX_GROUP, table=E2M1, bits=4)


def mxfp4(config: Config) -> Method:
    """The method, whatever `config` says: there is one."""
    return Method("mxfp4", (CODES,), PARTS, _open, weight="")


def _open(module: Module) -> QuantizedMatrix:
    experts, outputs, groups, octets = module.axes(CODES, 4)
    module.expect(CODES, (experts, outputs, groups, OCTETS), "uint8")
    module.expect(SCALES, (experts, outputs, groups), "uint8")
    check_powers(module, SCALES)
    rows_of = experts * outputs

    def pairs(rows: slice, columns: slice) -> np.ndarray:
        return module.viewed(CODES, (rows_of, groups * octets), rows, columns)

    def read(component: Component, rows: slice, columns: slice) -> np.ndarray:
        if component == "scales":
            return powers_of_two(module.viewed(SCALES, (rows_of, groups), rows, columns))
        first = columns.start // 2
        codes = nibbles(pairs(rows, slice(first, -(-columns.stop // 2))))
        return codes[:, columns.start - 2 * first :][:, : columns.stop - columns.start]

    def words(rows: slice, columns: slice) -> np.ndarray:
        return pairs(rows, slice(4 * columns.start, 4 * columns.stop)).view(np.uint32)

    return QuantizedMatrix((experts, outputs, groups * MX_GROUP), FORMAT, read, words=words)
