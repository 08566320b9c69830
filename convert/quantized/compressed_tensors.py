"""compressed-tensors: several layouts, chosen for each module by the group of the configuration that it is a target of.

    pack-quantized   weight_packed i32 [out, ⌈in·bits/32⌉], a code less 2^(bits-1) is the value; weight_scale [out,
                     groups]; weight_shape; weight_zero_point i32 [⌈out·bits/32⌉, groups]; weight_g_idx i32 [in]
    int-quantized    weight i8 [out, in], weight_scale [1] or [out, groups], weight_zero_point i8 likewise
    float-quantized  weight e4m3 [out, in], weight_scale [1], [out, groups] or, of blocks, [⌈out/b⌉, ⌈in/b⌉]
    naive-quantized  either of the two
    nvfp4-pack-quantized, mxfp4-pack-quantized   see `fp4`

Layouts: https://github.com/vllm-project/compressed-tensors. Rounded activations (`input_activations`) keep their type
here. Four-bit integers that are meant for eight-bit activations, sparse layouts and rotated weights are refused.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import BITS, packed, unpack, whole_words
from convert.quantized.fp4 import open_mxfp4, open_nvfp4
from convert.quantized.fp8 import VALUES as E4M3
from convert.quantized.fp8 import open_blocks
from convert.quantized.grouped import grouped
from convert.quantized.method import FLOATS, Method, Module

PACKED, SCALE, ZERO, ORDER, SHAPE = (
    ".weight_packed",
    ".weight_scale",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_shape",
)
GLOBAL = ".weight_global_scale"
OF_INPUTS = (".input_scale", ".input_zero_point", ".input_global_scale")
PARTS = (".weight", PACKED, SCALE, ZERO, ORDER, SHAPE, GLOBAL, *OF_INPUTS)
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
FORMATS = (*PLAIN, "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")


def compressed_tensors(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: a layout or a scheme that is not supported.
    """
    if config.get("transform_config") or config.get("sparsity_config"):
        key = "transform_config" if config.get("transform_config") else "sparsity_config"
        raise config.error(key, "is not supported")
    groups = config.section("config_groups")
    if groups is None or not groups.values:
        raise config.error("config_groups", "must describe at least one group")
    schemes: dict[str, Config] = {}
    for name in groups.values:
        group = groups.section(name)
        assert group is not None
        scheme = _scheme(group, group.text("format", config.text("format")))
        targets = group.get("targets")
        if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
            raise group.error("targets", "must be a list of names")
        schemes |= dict.fromkeys(targets, scheme)
    return Method("compressed-tensors", (SCALE,), PARTS, partial(_open, schemes=schemes, where=config))


def _scheme(group: Config, format: str) -> Config:
    """The weights' part of a group with its layout added; checked as far as it does not depend on a module."""
    weights = group.section("weights")
    if weights is None:
        raise group.error("weights", "must be an object")
    if format not in FORMATS:
        raise group.error("format", f"must be one of {', '.join(FORMATS)}, not {format!r}")
    if format == "pack-quantized":
        if weights.integer("num_bits") not in BITS or weights.text("type", "int") != "int":
            raise weights.error("num_bits", f"must be one of {', '.join(map(str, BITS))}, integers")
        if weights.integer("num_bits") < 8 and group.get("input_activations"):
            raise group.error("input_activations", "must be null beside packed integers")
    elif format in PLAIN and weights.integer("num_bits") != 8:
        raise weights.error("num_bits", f"must be 8 in {format}")
    return Config({**weights.values, "format": format}, weights.where)


def _open(module: Module, *, schemes: Mapping[str, Config], where: Config) -> QuantizedMatrix:
    scheme = _scheme_of(module.name, schemes)
    if scheme is None:
        raise where.error("config_groups", f"have no target for {module.name!r}, which is quantised")
    match scheme.text("format"):
        case "pack-quantized":
            return _open_packed(module, scheme.integer("num_bits"))
        case "nvfp4-pack-quantized":
            return open_nvfp4(module, PACKED, SCALE, GLOBAL, divides=True)
        case "mxfp4-pack-quantized":
            return open_mxfp4(module, PACKED, SCALE)
    if scheme.get("strategy") == "block":
        return open_blocks(module, suffix=SCALE, blocks=_blocks(scheme))
    return _open_plain(module, "int8" if scheme.text("type", "int") == "int" else E4M3)


def _scheme_of(name: str, schemes: Mapping[str, Config]) -> Config | None:
    """The scheme of module `name`: its own name counts before a pattern, a pattern before a class of modules."""
    patterns = [each for each in sorted(schemes) if each.startswith("re:")]
    named = [each for each in patterns if re.match(each.removeprefix("re:"), name)]
    chosen = name if name in schemes else named[0] if named else "Linear"
    return schemes.get(chosen)


def _blocks(scheme: Config) -> list[int]:
    blocks: Any = scheme.get("block_structure")
    if not isinstance(blocks, list) or len(blocks) != 2 or any(type(each) is not int or each < 1 for each in blocks):
        raise scheme.error("block_structure", "must be two positive integers")
    return blocks


def _open_packed(module: Module, bits: int) -> QuantizedMatrix:
    outputs, inputs = module.integers(SHAPE, 2)
    module.expect(PACKED, (outputs, packed(inputs, bits)), "int32")
    scales, zeros, middle = _per_group(module, outputs), None, np.uint8(1 << (bits - 1))
    if module.has(ZERO):
        module.expect(ZERO, (packed(outputs, bits), scales.shape[1]), "int32")
        zeros = unpack(module.whole(ZERO).T, bits)[:, :outputs].T

    def values(rows: slice, columns: slice) -> np.ndarray:
        words, inside = whole_words(columns, bits)
        codes = unpack(module.read(PACKED, rows, words), bits)[:, inside]
        return codes if zeros is not None else (codes - middle).view(np.int8)

    dtype = "int8" if zeros is None else "uint8"
    order = module.whole(ORDER) if module.has(ORDER) else None
    return grouped(
        module, f"pack-quantized of {bits} bits", inputs, dtype, values, scales, zeros, bits=bits, of_inputs=order
    )


def _open_plain(module: Module, dtype: str) -> QuantizedMatrix:
    outputs, inputs = module.axes(".weight", 2)
    module.expect(".weight", (outputs, inputs), dtype)
    scales, zeros = _per_group(module, outputs), None
    if module.has(ZERO):
        module.expect(ZERO, module.shape(SCALE), "int8")
        zeros = np.broadcast_to(module.whole(ZERO).reshape(-1, scales.shape[1]), scales.shape)
        zeros = zeros if zeros.any() else None
    return grouped(module, f"{dtype} in groups", inputs, dtype, partial(module.read, ".weight"), scales, zeros)


def _per_group(module: Module, outputs: int) -> np.ndarray:
    """[out, groups]: the scales, of which there may be a single one."""
    shape = module.shape(SCALE)
    if shape not in ((), (1,), (1, 1)) and (shape[0] != outputs or len(shape) > 2):
        raise module.error(SCALE, f"has shape {list(shape)}, must have one scale or {outputs} rows")
    module.expect(SCALE, shape, *FLOATS)
    scales = module.scales(SCALE)
    return np.broadcast_to(scales.reshape(1, 1), (outputs, 1)) if scales.size == 1 else scales.reshape(outputs, -1)
