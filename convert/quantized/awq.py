"""AWQ: codes of four bits and zero points, packed along the outputs in an order of their own, or along the inputs.

    gemm    qweight  i32 [in, out/8]      qzeros  i32 [groups, out/8]      scales  floats [groups, out]
    gemv    qweight  i32 [out, in/8]      qzeros  i32 [out, w]             scales  floats [out, 8w]

Layouts: AutoAWQ's `WQLinear_GEMM`, where of the eight outputs in a word output j lies in nibble `NIBBLE[j]`, and
`WQLinear_GEMV`, where w words are as many as its kernel reads at once, and what is left of them holds 0. The layout of
its third kernel (`gemv_fast`) is refused by name.
"""

from functools import partial

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import CACHED, unpack, whole_words
from convert.quantized.grouped import configured_size, group_size, grouped, modules_are_alike
from convert.quantized.method import FLOATS, Method, Module

PARTS = (".qweight", ".qzeros", ".scales")
NIBBLE = np.array([0, 4, 1, 5, 2, 6, 3, 7])
BITS, PER_WORD = 4, 8
HALVES = tuple((np.uint32(bits), np.uint32(mask)) for bits, mask in ((16, 0xFFFF), (8, 0xFF00FF), (4, 0xF0F0F0F)))
VERSIONS = ("gemm", "exllama", "gemv")
AT_ONCE = {32: 4, 64: 2}  # words of zero points, by size of group


def awq(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: bits other than four, the layout of another kernel, or groups that the kernel has not.
    """
    bits = config.spelled("bits", "w_bit")
    if config.integer(bits) != BITS:
        raise config.error(bits, f"must be {BITS}")
    key = config.spelled("version", "checkpoint_format", "format")
    if (version := config.text(key, "gemm").lower()) not in VERSIONS:
        raise config.error(key, f"must be {' or '.join(VERSIONS)}")
    if version == "gemv":
        key = config.spelled("group_size", "q_group_size")
        if (group := config.integer(key)) < 128 and group not in AT_ONCE:
            raise config.error(key, "must be 32, 64 or at least 128")
        return Method("awq", PARTS[:1], PARTS, partial(_open_gemv, size=group))
    size = configured_size(config, "group_size", "q_group_size")
    return Method("awq", PARTS[:1], PARTS, partial(_open, size=size, alike=modules_are_alike(config)))


def _open(module: Module, *, size: int | None, alike: bool) -> QuantizedMatrix:
    inputs, words = module.axes(".qweight", 2)
    groups, outputs = module.axes(".scales", 2)
    module.expect(".qweight", (inputs, -(-outputs // PER_WORD)), "int32")
    module.expect(".qzeros", (groups, words), "int32")
    module.expect(".scales", (groups, words * PER_WORD), *FLOATS)

    def values(rows: slice, columns: slice) -> np.ndarray:
        first = rows.start // PER_WORD
        codes = _codes(module.read(".qweight", columns, slice(first, -(-rows.stop // PER_WORD))))
        return codes[:, rows.start - first * PER_WORD :][:, : rows.stop - rows.start].T

    def packed(rows: slice, columns: slice) -> np.ndarray:
        first, of_inputs = rows.start // PER_WORD, slice(PER_WORD * columns.start, PER_WORD * columns.stop)
        stored = module.read(".qweight", of_inputs, slice(first, -(-rows.stop // PER_WORD)))
        return _turned(stored.view(np.uint32))[rows.start - first * PER_WORD :][: rows.stop - rows.start]

    size = group_size(module, ".scales", inputs, groups, size, alike=alike)
    scales, zeros = module.scales(".scales").T, _codes(module.whole(".qzeros")).T
    return grouped("awq", inputs, "uint8", values, scales, zeros, bits=BITS, size=size, words=packed)


def _open_gemv(module: Module, *, size: int) -> QuantizedMatrix:
    outputs, words = module.axes(".qweight", 2)
    module.expect(".qweight", (outputs, words), "int32")
    inputs = words * PER_WORD
    groups, rest = divmod(inputs, size)
    at_once = AT_ONCE.get(size, 1)
    width = -(-groups // (PER_WORD * at_once)) * at_once
    if rest:
        raise module.error(".qweight", f"has {inputs} inputs, which groups of {size} do not divide")
    module.expect(".qzeros", (outputs, width), "int32")
    module.expect(".scales", (outputs, width * PER_WORD), *FLOATS)
    scales = module.scales(".scales")
    if scales[:, groups:].any():
        raise module.error(".scales", f"has more than the {groups} groups that {inputs} inputs of {size} each are")
    zeros = unpack(module.whole(".qzeros"), BITS)[:, :groups]

    def values(rows: slice, columns: slice) -> np.ndarray:
        of_words, inside = whole_words(columns, BITS)
        return unpack(module.read(".qweight", rows, of_words), BITS)[:, inside]

    def packed(rows: slice, columns: slice) -> np.ndarray:
        return module.read(".qweight", rows, columns).view(np.uint32)

    return grouped("awq", inputs, "uint8", values, scales[:, :groups], zeros, bits=BITS, size=size, words=packed)


def _turned(words: np.ndarray) -> np.ndarray:
    """u32 [8n, w] of u32 [8w, n]: words of eight inputs of an output out of words of eight outputs of an input.

    Eight words of eight nibbles are transposed by swapping halves, quarters and eighths of words (Warren, Hacker's
    Delight, 7-3), a third of the steps that it takes one nibble at a time.
    """
    made = np.empty((words.shape[1], PER_WORD, len(words) // PER_WORD), np.uint32)
    rows = words.reshape(-1, PER_WORD, words.shape[1])  # [w, 8, n]
    step = max(1, CACHED // (4 * rows[0].size))
    for first in range(0, len(rows), step):
        block = rows[first : first + step].reshape(-1, 2, 2, 2, words.shape[1])
        for axis, (bits, mask) in enumerate(HALVES, start=1):
            low, high = np.split(block, 2, axis)
            block = np.concatenate([low & mask | (high & mask) << bits, low >> bits & mask | high & ~mask], axis)
        block = block.reshape(-1, PER_WORD, words.shape[1])[:, NIBBLE]
        made[..., first : first + step] = block.transpose(2, 1, 0)
    return made.reshape(-1, len(rows))


def _codes(words: np.ndarray) -> np.ndarray:
    """u8 [n, 8w] of i32 [n, w], in the order of the outputs."""
    codes = unpack(words, BITS)
    return codes.reshape(len(codes), -1, PER_WORD)[..., NIBBLE].reshape(codes.shape)
