"""GPTQ: codes packed along the inputs, zero points along the outputs, a group for each input.

    qweight  i32 [in·bits/32, out]      qzeros  i32 [groups, out·bits/32]
    scales   floats [groups, out]       g_idx   i32 [in], absent where groups are consecutive

Layout: AutoGPTQ's and GPTQModel's `QuantLinear`. Their first version stores a zero point less one, the second
(`gptq_v2`) as it is. In order of activation (`desc_act`) the inputs of a group lie apart: `g_idx` names it for each.
`dynamic` gives modules other bits and groups; the shapes of their tensors say so too, and only these are asked.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import BITS, WORD, packed, unpack, whole_words
from convert.quantized.grouped import grouped
from convert.quantized.method import FLOATS, Method, Module

PARTS = (".qweight", ".qzeros", ".scales", ".g_idx")
VERSIONS = ("gptq", "gptq_v2")


def gptq(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: bits that nobody packs so, or the layout of a kernel instead of the general one.
    """
    layout = config.text("checkpoint_format", "gptq")
    if layout not in VERSIONS:
        raise config.error("checkpoint_format", f"must be {' or '.join(VERSIONS)}")
    if (bits := config.integer("bits")) not in BITS:
        raise config.error("bits", f"must be one of {', '.join(map(str, BITS))}")
    candidates = (bits, *(other for other in BITS if other != bits))
    return Method("gptq", PARTS[:1], PARTS, partial(_open, candidates=candidates, first_version=layout == "gptq"))


def _open(module: Module, *, candidates: Sequence[int], first_version: bool) -> QuantizedMatrix:
    words, outputs = module.axes(".qweight", 2)
    groups, zero_words = module.axes(".qzeros", 2)
    bits = next((bits for bits in candidates if packed(outputs, bits) == zero_words), None)
    if bits is None:
        raise module.error(".qzeros", f"has {zero_words} words for {outputs} outputs")
    inputs = module.axes(".g_idx", 1)[0] if module.has(".g_idx") else words * WORD // bits
    module.expect(".qweight", (packed(inputs, bits), outputs), "int32")
    module.expect(".qzeros", (groups, zero_words), "int32")
    module.expect(".scales", (groups, outputs), *FLOATS)
    zeros = unpack(module.whole(".qzeros"), bits)[:, :outputs].T.astype(np.int16) + first_version  # [out, groups]
    middle = 1 << (bits - 1)
    symmetric = bool((zeros == middle).all())

    def values(rows: slice, columns: slice) -> np.ndarray:
        of_words, inside = whole_words(columns, bits)
        codes = unpack(module.read(".qweight", of_words, rows).T, bits)[:, inside]
        return (codes - np.uint8(middle)).view(np.int8) if symmetric else codes

    return grouped(
        module,
        f"gptq of {bits} bits",
        inputs,
        "int8" if symmetric else "uint8",
        values,
        module.scales(".scales").T,
        None if symmetric else zeros if zeros.max() > 255 else zeros.astype(np.uint8),
        bits=bits,
        of_inputs=module.whole(".g_idx") if module.has(".g_idx") else None,
    )
