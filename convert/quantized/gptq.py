"""GPTQ: codes packed along the inputs, zero points along the outputs, a group for each input.

    qweight  i32 [in·bits/32, out]      qzeros  i32 [groups, out·bits/32]
    scales   floats [groups, out]       g_idx   i32 [in], absent where groups are consecutive

Layout: AutoGPTQ's and GPTQModel's `QuantLinear`. Their first version stores a zero point less one, the second
(`gptq_v2`) as it is. In order of activation (`desc_act`) the inputs of a group lie apart: `g_idx` names it for each.
`dynamic` and AutoRound's `extra_config` give modules other bits and groups; the shapes of their tensors say which.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import BITS, WORD, packed, unpack, whole_words
from convert.quantized.grouped import configured_size, group_size, grouped, groups_of_inputs, modules_are_alike
from convert.quantized.method import FLOATS, Method, Module

PARTS = QWEIGHT, QZEROS, SCALES, ORDER = (".qweight", ".qzeros", ".scales", ".g_idx")
VERSIONS = ("gptq", "gptq_v2")
WORD_LIMIT = 0xFFFFFFFF


def gptq(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: bits that nobody packs so, rotated weights, or a kernel's layout instead of the general one.
    """
    key = config.spelled("checkpoint_format", "format")
    if (layout := config.text(key, VERSIONS[0])) not in VERSIONS:
        raise config.error(key, f"must be {' or '.join(VERSIONS)}")
    if config.flag("is_marlin_format", False):
        raise config.error("is_marlin_format", "must be false: the layout of that kernel is not supported")
    if config.get("rotation") is not None:  # GPTQModel's, whose down projections read rotated activations
        raise config.error("rotation", "must be null: activations are not rotated here")
    if (bits := config.integer("bits")) not in BITS:
        raise config.error("bits", f"must be one of {', '.join(map(str, BITS))}")
    alike = modules_are_alike(config)
    size = configured_size(config, "group_size")
    opened = partial(
        _open,
        candidates=(bits,) if alike else (bits, *(other for other in BITS if other != bits)),
        size=size,
        alike=alike,
        ordered=config.flag("desc_act", False) and size != -1,
        first_version=layout == VERSIONS[0],
    )
    return Method("gptq", PARTS[:1], PARTS, opened)


def _open(
    module: Module, *, candidates: Sequence[int], size: int | None, alike: bool, ordered: bool, first_version: bool
) -> QuantizedMatrix:
    words, outputs = module.axes(QWEIGHT, 2)
    module.expect(QWEIGHT, (words, outputs), "int32")
    groups, zero_words = module.axes(QZEROS, 2)
    bits = next((bits for bits in candidates if packed(outputs, bits) == zero_words), None)
    if bits is None:
        wanted = " or ".join(str(packed(outputs, each)) for each in candidates)
        raise module.error(QZEROS, f"has {zero_words} words for {outputs} outputs, must have {wanted}")
    module.expect(QZEROS, (groups, zero_words), "int32")
    module.expect(SCALES, (groups, outputs), *FLOATS)
    of_inputs = None
    if ordered or module.has(ORDER):
        inputs = module.axes(ORDER, 1)[0]
        of_inputs, size = groups_of_inputs(module, ORDER, inputs, groups), None
    else:
        inputs = words * WORD // bits
        size = group_size(module, SCALES, inputs, groups, size, alike=alike)
    module.expect(QWEIGHT, (packed(inputs, bits), outputs), "int32")
    zeros = _zeros(module.whole(QZEROS), bits, outputs, first_version)
    middle = 1 << (bits - 1)
    symmetric = bool((zeros == middle).all())

    def values(rows: slice, columns: slice) -> np.ndarray:
        of_words, inside = whole_words(columns, bits)
        codes = unpack(module.read(QWEIGHT, of_words, rows).T, bits)[:, inside]
        return (codes - np.uint8(middle)).view(np.int8) if symmetric else codes

    def as_stored(rows: slice, columns: slice) -> np.ndarray:
        return module.read(QWEIGHT, columns, rows).T.view(np.uint32)

    return grouped(
        f"gptq of {bits} bits",
        inputs,
        "int8" if symmetric else "uint8",
        values,
        module.scales(SCALES).T,
        None if symmetric else zeros,
        bits=bits,
        size=size,
        of_inputs=of_inputs,
        words=as_stored if bits == 4 else None,
    )


def _zeros(words: np.ndarray, bits: int, outputs: int, first_version: bool) -> np.ndarray:
    """u8 [out, groups].

    The first version subtracts 1 in each place of a word, and from the word as a whole: a zero point of 0 borrows from
    its neighbour. Three bits lie across words and do not. As GPTQModel reads and writes it.
    """
    if first_version and bits != 3:
        words = (words.view(np.uint32) + np.uint32(WORD_LIMIT // ((1 << bits) - 1))).view(np.int32)
    codes = unpack(words, bits)[:, :outputs].T
    return (codes + np.uint8(1)) & np.uint8(7) if first_version and bits == 3 else codes
