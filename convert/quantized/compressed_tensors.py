"""compressed-tensors: several layouts, chosen for each module by the group of the configuration that it is a target of.

    pack-quantized   weight_packed i32 [out, ⌈in·bits/32⌉], a code less 2^(bits-1) is the value; weight_scale [out,
                     groups]; weight_shape; weight_zero_point i32 [⌈out·bits/32⌉, groups]; weight_g_idx i32 [in]
    int-quantized    weight i8 [out, in], of fewer bits too, weight_scale [1] or [out, groups], weight_zero_point i8
                     likewise
    float-quantized  weight e4m3 [out, in], weight_scale [1], [out, groups] or, of blocks, [⌈out/b⌉, ⌈in/b⌉]
    naive-quantized  either of the two
    nvfp4-pack-quantized, mxfp4-pack-quantized   see `fp4`; mxfp8-quantized   see `fp8`

Layouts: https://github.com/vllm-project/compressed-tensors. Rounded activations (`input_activations`) keep their type
here. Sparse layouts and rotated weights are refused.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import regex

from convert.config.config import Config
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.quantized.bits import BITS, packed, unpack, whole_words
from convert.quantized.fp4 import open_mxfp4, open_nvfp4
from convert.quantized.fp8 import VALUES as E4M3
from convert.quantized.fp8 import open_blocks, open_mxfp8
from convert.quantized.grouped import configured_size, group_size, grouped, groups_of_inputs
from convert.quantized.method import FLOATS, Method, Module

PACKED, SCALE, ZERO, ORDER, SHAPE = (
    ".weight_packed",
    ".weight_scale",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_shape",
)
GLOBAL = ".weight_global_scale"
OF_ACTIVATIONS = ("input_activations", "output_activations")
OF_INPUTS = (".input_scale", ".input_zero_point", ".input_global_scale")
PARTS = (".weight", PACKED, SCALE, ZERO, ORDER, SHAPE, GLOBAL, *OF_INPUTS)
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
FOUR_BITS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
OF_INTEGERS = ("int-quantized", "naive-quantized")
STRATEGIES = (None, "tensor", "channel", "group", "block", "tensor_group")
EMBEDDINGS = regex.compile(r"(?:^|\.)(?:embed_(?:tokens|in|positions)|(?:word_)?embeddings|wte|wpe|shared)$")
MATCH_SECONDS = 1.0  # a pattern of a checkpoint may take for ever
MAX_SIDE = 2**31
FORMATS = (*PLAIN, "mxfp8-quantized", "pack-quantized", *FOUR_BITS)


def compressed_tensors(config: Config) -> Method:
    """The method that `config` describes.

    Raises:
        CheckpointError: a layout or a scheme that is not supported.
    """
    if config.get("transform_config"):
        raise config.error("transform_config", "is not supported")
    sparsity = config.section("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in (None, "dense"):
        raise sparsity.error("format", "must be dense")
    groups = groups_of_weights(config)
    if not groups:
        raise config.error("config_groups", "must describe at least one group of weights")
    schemes: dict[str, Config] = {}
    for group in groups:
        scheme = _scheme(group, config)
        targets = group.get("targets")
        if not isinstance(targets, list) or not targets or not all(isinstance(each, str) for each in targets):
            raise group.error("targets", "must be a list of names")
        schemes |= dict.fromkeys(targets, scheme)
    return Method("compressed-tensors", (SCALE,), PARTS, partial(_open, schemes=schemes, where=config))


def groups_of_weights(config: Config) -> list[Config]:
    """The groups of `config` but for those of activations alone, as attention's, whose inputs are rounded.

    Raises:
        CheckpointError: the groups, or one of them, are no object.
    """
    if (groups := config.section("config_groups")) is None:
        return []
    found = []
    for name in groups.values:
        if (group := groups.section(name)) is None:
            raise groups.error(name, "must be an object")
        if group.get("weights") is not None or not any(map(group.get, OF_ACTIVATIONS)):
            found.append(group)
    return found


def _scheme(group: Config, whole: Config) -> Config:
    """The weights' part of a group with its layout added; checked as far as it does not depend on a module."""
    weights = group.section("weights")
    if weights is None:
        raise group.error("weights", "must be an object")
    at = group if group.get("format") is not None else whole
    if (format := at.text("format")) not in FORMATS:
        raise at.error("format", f"must be one of {', '.join(FORMATS)}")
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    if kind not in ("int", "float"):
        raise weights.error("type", "must be int or float")
    if (strategy := weights.get("strategy")) not in STRATEGIES:
        raise weights.error("strategy", f"must be one of {', '.join(filter(None, STRATEGIES))}")
    needed = 4 if format in FOUR_BITS else 8
    if format == "pack-quantized":
        if bits not in BITS or kind != "int":
            raise weights.error("num_bits", f"must be one of {', '.join(map(str, BITS))}, integers")
        if strategy == "block":
            raise weights.error("strategy", f"must not be that in {format}")
    elif bits != needed and not (bits < needed and kind == "int" and format in OF_INTEGERS):
        raise weights.error("num_bits", f"must be {needed} in {format}")
    return Config({**weights.values, "format": format}, weights.where)


def _open(module: Module, *, schemes: Mapping[str, Config], where: Config) -> QuantizedMatrix:
    scheme = _scheme_of(module.name, schemes, where)
    match scheme.text("format"):
        case "pack-quantized":
            return _open_packed(module, scheme)
        case "nvfp4-pack-quantized":
            return open_nvfp4(module, PACKED, SCALE, GLOBAL, divides=True)
        case "mxfp4-pack-quantized":
            return open_mxfp4(module, PACKED, SCALE)
        case "mxfp8-quantized":
            return open_mxfp8(module)
    if scheme.get("strategy") == "block":
        return open_blocks(module, suffix=SCALE, blocks=_blocks(scheme))
    return _open_plain(module, scheme)


def _scheme_of(name: str, schemes: Mapping[str, Config], where: Config) -> Config:
    """The scheme of module `name`: its own name counts before a pattern, a pattern before a class of modules."""
    chosen = name if name in schemes else next((each for each in sorted(schemes) if _matches(each, name, where)), "")
    classes = ("Embedding", "Linear") if EMBEDDINGS.search(name) else ("Linear",)
    scheme = next((schemes[each] for each in (chosen, *classes) if each in schemes), None)
    if scheme is None:
        raise where.error("config_groups", f"have no target for {name!r}, which is quantised")
    return scheme


def _matches(target: str, name: str, where: Config) -> bool:
    """Whether `target` is a pattern, and of `name`."""
    if not target.startswith("re:"):
        return False
    try:
        return regex.match(target.removeprefix("re:"), name, timeout=MATCH_SECONDS) is not None
    except (regex.error, TimeoutError, RecursionError, OverflowError) as error:
        problem = f"have a target {target[:80]!r} that cannot be matched ({type(error).__name__} {error})"
        raise where.error("config_groups", problem) from error


def _blocks(scheme: Config) -> list[int]:
    blocks: Any = scheme.get("block_structure")
    if isinstance(blocks, str):  # as versions before 0.11 wrote them: "128x128"
        blocks = [int(each) if each.isdecimal() else 0 for each in blocks.split("x")]
    if not isinstance(blocks, list) or len(blocks) != 2 or any(type(each) is not int or each < 1 for each in blocks):
        raise scheme.error("block_structure", "must be two positive integers")
    return blocks


def _open_packed(module: Module, scheme: Config) -> QuantizedMatrix:
    bits = scheme.integer("num_bits")
    outputs, inputs = module.integers(SHAPE, 2)
    if min(outputs, inputs) < 1 or max(outputs, inputs) >= MAX_SIDE:
        raise module.error(SHAPE, f"is {[outputs, inputs]}, must be positive")
    module.expect(PACKED, (outputs, packed(inputs, bits)), "int32")
    scales, size = _per_group(module, scheme, outputs, inputs)
    zeros, middle = None, np.uint8(1 << (bits - 1))
    if module.has(ZERO) or not scheme.flag("symmetric", True):
        module.expect(ZERO, (packed(outputs, bits), scales.shape[1]), "int32")
        zeros = unpack(module.whole(ZERO).T, bits)[:, :outputs].T

    def values(rows: slice, columns: slice) -> np.ndarray:
        words, inside = whole_words(columns, bits)
        codes = unpack(module.read(PACKED, rows, words), bits)[:, inside]
        return codes if zeros is not None else (codes - middle).view(np.int8)

    def as_stored(rows: slice, columns: slice) -> np.ndarray:
        return module.read(PACKED, rows, columns).view(np.uint32)

    dtype = "int8" if zeros is None else "uint8"
    ordered = module.has(ORDER) or scheme.get("actorder") in ("group", "dynamic")
    order = groups_of_inputs(module, ORDER, inputs, scales.shape[1]) if ordered else None
    return grouped(
        f"pack-quantized of {bits} bits",
        inputs,
        dtype,
        values,
        scales,
        zeros,
        bits=bits,
        size=size,
        of_inputs=order,
        words=as_stored if bits == 4 else None,
    )


def _open_plain(module: Module, scheme: Config) -> QuantizedMatrix:
    dtype = "int8" if scheme.text("type", "int") == "int" else E4M3
    outputs, inputs = module.axes(".weight", 2)
    module.expect(".weight", (outputs, inputs), dtype)
    (scales, size), zeros = _per_group(module, scheme, outputs, inputs), None
    if module.has(ORDER):
        raise module.error(ORDER, "is not supported in this layout")
    if module.has(ZERO) or not scheme.flag("symmetric", True):
        module.expect(ZERO, module.shape(SCALE), "int8")
        zeros = np.broadcast_to(module.whole(ZERO).reshape(-1, scales.shape[1]), scales.shape)
        zeros = zeros if zeros.any() else None
    return grouped(f"{dtype} in groups", inputs, dtype, partial(module.read, ".weight"), scales, zeros, size=size)


def _per_group(module: Module, scheme: Config, outputs: int, inputs: int) -> tuple[np.ndarray, int]:
    """[out, groups]: the scales, of which there may be a single one; and how many inputs a group has."""
    shape = module.shape(SCALE)
    whole = shape in ((), (1,), (1, 1))
    if (not whole and shape not in ((outputs,), (outputs, *shape[1:2]))) or 0 in shape:
        raise module.error(SCALE, f"has shape {list(shape)}, must have one scale or {outputs} rows")
    module.expect(SCALE, shape, *FLOATS)
    scales = module.scales(SCALE)
    scales = np.broadcast_to(scales.reshape(1, 1), (outputs, 1)) if whole else scales.reshape(outputs, -1)
    size = configured_size(scheme, "group_size") if scheme.get("strategy") in (None, "group") else -1
    return scales, group_size(module, SCALE, inputs, scales.shape[1], size)
