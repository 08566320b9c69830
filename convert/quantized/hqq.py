"""HQQ: codes of 8, 4, 3, 2 or 1 bits with floating zero points, in groups along the inputs.

    W_q    u8 [rows·bits/8, group]: the flattened matrix in rows of a group; a byte holds rows that lie a part of the
           matrix apart, the first in its highest bits. 3 bits: i32 [⌈rows/10⌉, group], ten rows in the lowest 30
    scale, zero  floats [rows, 1];  shape, nbits, group_size, axis  what they say;  others are the library's own

Layout: `HQQLinear.state_dict` and `BitPack` of the library hqq. Its groups along the outputs (axis 0) are refused by
name.
"""

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.grouped import grouped
from convert.quantized.method import FLOATS, Method, Module

ARRAYS = (".W_q", ".scale", ".zero")
FACTS = (".shape", ".nbits", ".group_size", ".axis", ".view_as_float", ".quant_scale", ".quant_zero")
UNUSED = (
    *(".packing", ".unpack_view_dtype", ".compute_dtype", ".offload_meta", ".encoded_state_dict"),
    *(".stores_quant_config", ".channel_wise", ".optimize", ".round_zero"),
)
PARTS = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}  # of a word, by bits


def hqq(config: Config) -> Method:
    """The method, whatever `config` says: each module says it too."""
    return Method("hqq", ARRAYS[:1], (*ARRAYS, *FACTS, *UNUSED), _open)


def _open(module: Module) -> QuantizedMatrix:
    (bits,), (axis,) = module.integers(".nbits", 1), module.integers(".axis", 1)
    outputs, inputs = module.integers(".shape", 2)
    size = module.integers(".group_size", 1)[0] if module.has(".group_size") else inputs
    if bits not in PARTS:
        raise module.error(".nbits", f"must be one of {', '.join(map(str, PARTS))}, is {bits}")
    if axis != 1:
        raise module.error(".axis", "must be 1: groups along the outputs are not supported")
    if min(outputs, inputs, size) < 1 or inputs % size:
        raise module.error(".group_size", f"{size} does not divide rows of {inputs}")
    for fact in (".view_as_float", ".quant_scale", ".quant_zero"):
        if module.has(fact) and module.integers(fact, 1)[0]:
            raise module.error(fact, "is set, which is not supported")
    groups, parts, dtype = outputs * inputs // size, PARTS[bits], "int32" if bits == 3 else "uint8"
    if dtype == "uint8" and groups % parts:
        raise module.error(".W_q", f"of {groups} groups does not divide into {parts} parts")
    step = -(-groups // parts)  # rows that lie so far apart share a word
    module.expect(".W_q", (step, size), dtype)
    module.expect(".scale", (groups, 1), *FLOATS)
    module.expect(".zero", (groups, 1), *FLOATS)
    per_row = inputs // size

    def values(rows: slice, columns: slice) -> np.ndarray:
        first, last = rows.start * per_row, rows.stop * per_row
        codes = np.empty((last - first, size), np.uint8)
        for part in range(parts):
            low, high = max(first, part * step), min(last, (part + 1) * step)
            if low < high:
                stored = module.read(".W_q", slice(low - part * step, high - part * step))
                of_part = codes[low - first : high - first]
                np.right_shift(stored, bits * (parts - 1 - part), out=of_part, casting="unsafe")
        codes &= np.uint8((1 << bits) - 1)
        return codes.reshape(-1, inputs)[:, columns]

    scales, zeros = (module.scales(each).reshape(outputs, per_row) for each in (".scale", ".zero"))
    return grouped(f"hqq of {bits} bits", inputs, "uint8", values, scales, zeros, bits=bits)
