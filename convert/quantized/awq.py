"""AWQ: codes of four bits and zero points, both packed along the outputs, in an order of their own.

    qweight  i32 [in, out/8]      qzeros  i32 [groups, out/8]      scales  floats [groups, out]

Layout: AutoAWQ's `WQLinear_GEMM`. Of the eight outputs in a word, output j lies in nibble `NIBBLE[j]`. The layouts of
its other kernels (`gemv`, `gemv_fast`) are refused by name.
"""

from functools import partial

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import unpack
from convert.quantized.grouped import configured_size, group_size, grouped
from convert.quantized.method import FLOATS, Method, Module

PARTS = (".qweight", ".qzeros", ".scales")
NIBBLE = np.array([0, 4, 1, 5, 2, 6, 3, 7])
BITS, PER_WORD = 4, 8
VERSIONS = ("gemm", "exllama")


def awq(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: bits other than four, or the layout of another kernel.
    """
    bits = config.spelled("bits", "w_bit")
    if config.integer(bits) != BITS:
        raise config.error(bits, f"must be {BITS}")
    if config.text("version", "gemm").lower() not in VERSIONS:
        raise config.error("version", f"must be {' or '.join(VERSIONS)}")
    size = configured_size(config, "group_size", "q_group_size")
    return Method("awq", PARTS[:1], PARTS, partial(_open, size=size))


def _open(module: Module, *, size: int | None) -> QuantizedMatrix:
    inputs, words = module.axes(".qweight", 2)
    groups, outputs = module.axes(".scales", 2)
    module.expect(".qweight", (inputs, -(-outputs // PER_WORD)), "int32")
    module.expect(".qzeros", (groups, words), "int32")
    module.expect(".scales", (groups, words * PER_WORD), *FLOATS)

    def values(rows: slice, columns: slice) -> np.ndarray:
        first = rows.start // PER_WORD
        codes = _codes(module.read(".qweight", columns, slice(first, -(-rows.stop // PER_WORD))))
        return codes[:, rows.start - first * PER_WORD :][:, : rows.stop - rows.start].T

    size = group_size(module, ".scales", inputs, groups, size)
    scales, zeros = module.scales(".scales").T, _codes(module.whole(".qzeros")).T
    return grouped("awq", inputs, "uint8", values, scales, zeros, bits=BITS, size=size)


def _codes(words: np.ndarray) -> np.ndarray:
    """u8 [n, 8w] of i32 [n, w], in the order of the outputs."""
    codes = unpack(words, BITS)
    return codes.reshape(len(codes), -1, PER_WORD)[..., NIBBLE].reshape(codes.shape)
