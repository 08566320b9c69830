"""Recipes: how each parameter of `parameter_table` is made of checkpoint tensors.

A recipe divides the parameter into boxes and says which stored rows fill each box. A checkpoint keeps one matrix
`[out, in]` per projection, or several in one, in one of a few orders. The table splits both axes and groups q, k and v
by key/value head. All differences (fused projections, Conv1D's `[in, out]`, interleaved rotary pairs) are choices of
rows, so a loaded model has no trace of them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from convert.mapping.latent_rows import KINDS, latent_rows
from convert.mapping.linear_attention import LinearParts
from convert.mapping.mamba2 import mamba2_part
from convert.mapping.part import Part, Recipe
from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, parameter_table

# Rows of a fused qkv: q ‖ k ‖ v; grouped as the table has them; or CodeGen's four blocks of q, v, k.
QKV = Literal["concat", "grouped", "codegen"]
CODEGEN_BLOCKS = 4
OF_ONE_ROW = ("head_bias", "router_choice_bias")  # parameters of which `Layout.bias_as_row` speaks


@dataclass(frozen=True)
class Layout:
    """How a family stores what the table stores differently.

    qkv: the order of rows where one tensor holds all three.
    gated_queries: in the tensor of queries, each head's stand in front of the rows that make its `head_gate`.
    interleaved: rotary pairs lie side by side; the table has them half a head apart.
    transposed: matrices of layers are `[in, out]` (Conv1D).
    norm_per_head: qk_norm has weights [heads, head_dim] instead of [head_dim].
    first_position: how many rows at the start of the position table are never used.
    unit_head: rows of the head are divided by their length.
    stacked_experts: experts lie in one tensor [expert, out, in] per projection.
    joint_experts: they lie in one tensor of gate and up and one of down: "alternating" [expert, in, out], whose outputs
        are gate's and up's in turn; "turned" [expert, in, out], gate's in front of up's; "straight" [expert, out, in],
        likewise.
    bias_as_row: the head's bias, or what helps to choose experts, is a matrix of one row.
    short_head: the head has rows for tokens alone; those behind mean nothing, and are the embedding's.
    apart: how many of the last rows of embedding and head are in tensors of their own, `embedding_apart`, `head_apart`.
    value_heads_in_turn: of linear attention, see `LinearParts`.
    latents_apart: what makes keys of latents is a tensor [head, latent, key], and what makes values one [head, value,
        latent].
    """

    qkv: QKV = "concat"
    gated_queries: bool = False
    interleaved: bool = False
    transposed: bool = False
    norm_per_head: bool = False
    first_position: int = 0
    unit_head: bool = False
    stacked_experts: bool = False
    joint_experts: Literal["", "alternating", "turned", "straight"] = ""
    bias_as_row: bool = False
    short_head: bool = False
    apart: int = 0
    value_heads_in_turn: bool = False
    latents_apart: bool = False


def identity(spec: ModelSpec) -> dict[str, Recipe]:
    """Recipes of a checkpoint that already has the table's names and layout."""
    table = parameter_table(spec)
    return {name: Recipe((Part(name, p.shape, (0,) * len(p.shape), p.shape),)) for name, p in table.items()}


def checkpoint_names(tensors: Mapping[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    """Names of the checkpoint tensors of parameter `name`, by its own name or by that of any layer. Those of a bias are
    its weight's, ending in `.bias`.
    """
    layer = re.search(r"\d+", name)
    key = name if name in tensors else re.sub(r"\d+", "{i}", name, count=1)
    found = tensors.get(key)
    if found is None and key.endswith("_bias"):
        weight = checkpoint_names(tensors, name.removesuffix("_bias"))
        found = tuple(re.sub(r"weight$", "bias", each) for each in weight)
    return tuple(each.replace("{i}", layer.group() if layer else "") for each in found or ())


def recipes(
    spec: ModelSpec,
    tensors: Mapping[str, tuple[str, ...]],
    layout: Layout,
    table: Mapping[str, Parameter] | None = None,
) -> dict[str, Recipe]:
    """Recipes from a family's names: `tensors["layers.{i}.qkv"] = ("…layers.{i}.q_proj.weight", …)`.

    Args:
        table: the parameters, if not those of `spec` but for what it sees with, which has names of its own.

    Raises:
        KeyError: the family names no tensor of a parameter.
    """
    made = {}
    text = replace(spec, vision=None)
    for name, parameter in (parameter_table(text) if table is None else table).items():
        named = checkpoint_names(tensors, name)
        if not named:
            raise KeyError(name)
        if name == "head" and layout.short_head:
            made[name] = Recipe(tuple(_short_head(spec, parameter, (*named, *tensors["embedding"]))))
            continue
        if name in ("embedding", "head") and layout.apart:
            made[name] = Recipe(tuple(_apart(parameter, (*named, *tensors[f"{name}_apart"]), layout.apart)))
            continue
        parts = _parts(name, spec.sized_for(name), parameter, named, layout)
        made[name] = Recipe(tuple(parts), name == "head" and layout.unit_head)
    return made


def _parts(name: str, spec: ModelSpec, parameter: Parameter, named: Sequence[str], layout: Layout) -> list[Part]:
    kind = name.rsplit(".", 1)[-1].removesuffix("_bias")
    if kind == "qkv":
        return _qkv(name, spec, parameter, named, layout)
    if kind == "head_gate":
        return [_head_gate(spec, parameter, named[0], layout)]
    if kind.startswith("linear_"):
        assert spec.linear_attention is not None
        return LinearParts(spec.linear_attention, layout.value_heads_in_turn).of(kind, parameter, named)
    if kind.startswith("mamba_"):
        assert spec.mamba2 is not None
        return [mamba2_part(name.rsplit(".", 1)[-1], spec.mamba2, parameter, named[0])]
    if kind == "qk_norm":
        return _qk_norm(name, spec, named, layout)
    if spec.attention.latent and kind in KINDS:
        return [_latent(kind, spec, spec.attention.latent, parameter, named[0], layout)]
    if kind in ("experts_gate_up", "experts_down"):
        if layout.joint_experts:
            return [_joint_experts(parameter, named[0], layout)]
        return _experts(kind, parameter, named, layout)
    if name.endswith((".conv", ".short_conv")):  # stored with an axis of one input channel
        (channels, taps) = parameter.shape
        return [Part(named[0], (channels, 1, taps), (0, 0), parameter.shape)]
    if name.endswith(OF_ONE_ROW) and layout.bias_as_row:
        return [Part(named[0], (1, *parameter.shape), (0,), parameter.shape)]
    if kind in ("attention_gate", "mlp_gate") and parameter.shape != (1,):  # stored with axes of texts and of tokens
        return [Part(named[0], (1, 1, *parameter.shape), (0,), parameter.shape)]
    inputs = 0 if len(parameter.shape) == 1 or name.endswith("_bias") else parameter.inputs or 1
    if kind == "relative":  # a row per bucket, of all heads
        inputs = len(parameter.shape) - 1
    if kind == "sinks":
        inputs = 0
    transposed = layout.transposed and parameter.inputs > 0 and name.startswith("layers.")
    if kind == "positions":
        count, skipped = parameter.shape[0], layout.first_position
        rows = np.arange(skipped, skipped + count) if skipped else None
        return [_part(named[0], (0, 0), parameter.shape, inputs, rows, stored_rows=count + skipped)]
    box = (parameter.shape[0] // len(named), *parameter.shape[1:])
    starts = [(i * box[0], *(0 for _ in box[1:])) for i in range(len(named))]
    return [
        _part(tensor, start, box, inputs, None, transposed=transposed)
        for tensor, start in zip(named, starts, strict=True)
    ]


def _short_head(spec: ModelSpec, parameter: Parameter, named: Sequence[str]) -> list[Part]:
    (rows, width), tokens = parameter.shape, spec.tokens
    head = Part(named[0], (tokens, width), (0, 0), (tokens, width), 1)
    return [head, Part(named[1], (rows, width), (tokens, 0), (rows - tokens, width), 1, np.arange(tokens, rows))]


def _apart(parameter: Parameter, named: Sequence[str], last: int) -> list[Part]:
    rows, width = parameter.shape
    boxes = ((0, (rows - last, width)), (rows - last, (last, width)))
    return [Part(tensor, shape, (start, 0), shape, 1) for tensor, (start, shape) in zip(named, boxes, strict=True)]


def _part(
    tensor: str,
    start: tuple[int, ...],
    shape: tuple[int, ...],
    inputs: int,
    rows: np.ndarray | None,
    *,
    stored_rows: int = 0,
    transposed: bool = False,
) -> Part:
    outputs = len(shape) - inputs
    count = stored_rows or math.prod(shape[:outputs])
    stored = (count, *([math.prod(shape[outputs:])] if inputs else []))
    return Part(tensor, stored[::-1] if transposed else stored, start, shape, inputs, rows, transposed)


def _qkv(name: str, spec: ModelSpec, parameter: Parameter, named: Sequence[str], layout: Layout) -> list[Part]:
    inputs, trailing = parameter.inputs, parameter.shape[3:]
    transposed = layout.transposed and inputs > 0
    order = _pairs(name, spec, layout)
    if len(named) == 1 and layout.qkv == "grouped" and order is None:
        return [_part(named[0], (0,) * len(parameter.shape), parameter.shape, inputs, None, transposed=transposed)]
    parts: list[Part] = []
    for tensor, first, rows in _qkv_rows(spec, named, layout):
        turned = rows if order is None or first > spec.group else rows[..., order]
        start = (0, first, 0, *(0 for _ in trailing))
        total = _rows_of(spec, len(named), len(parts), layout)
        parts.append(
            _part(tensor, start, (*rows.shape, *trailing), inputs, turned, stored_rows=total, transposed=transposed)
        )
    return parts


def _latent(kind: str, spec: ModelSpec, latent: Latent, parameter: Parameter, tensor: str, layout: Layout) -> Part:
    """A matrix of latent attention or, of one axis, its bias."""
    if layout.latents_apart and kind in ("k_up", "v_up"):
        _, heads, own, rank = shape = parameter.shape
        if kind == "v_up":
            return Part(tensor, (heads, own, rank), (0,) * 4, shape, 1)
        return Part(tensor, (heads, rank, own), (0,) * 4, shape, 1, order=(0, 1, 3, 2))
    inputs = min(1, len(parameter.shape) - 1)
    outputs = parameter.shape[: len(parameter.shape) - inputs]
    rows, stored = latent_rows(kind, latent, spec.num_heads, layout.interleaved)
    start = (0,) * len(parameter.shape)
    return _part(tensor, start, parameter.shape, inputs, rows.reshape(outputs), stored_rows=stored)


def _head_gate(spec: ModelSpec, parameter: Parameter, tensor: str, layout: Layout) -> Part:
    """In a tensor of its own, or with the queries."""
    if not layout.gated_queries:
        return _part(tensor, (0,) * len(parameter.shape), parameter.shape, 1, None)
    gates = _gated_queries(spec)[:, :, 1]
    return _part(tensor, (0,) * len(parameter.shape), parameter.shape, 1, gates, stored_rows=2 * gates.size)


def _gated_queries(spec: ModelSpec) -> np.ndarray:
    """Rows [kv, group, 2, head_dim] of a tensor where each head has queries, then gates."""
    shape = (spec.num_kv_heads, spec.group, 2, spec.head_dim)
    return np.arange(math.prod(shape)).reshape(shape)


def _qkv_rows(spec: ModelSpec, named: Sequence[str], layout: Layout) -> list[tuple[str, int, np.ndarray]]:
    """For each of q, k and v: tensor, first index on the group axis, and stored rows [kv, group or 1, head_dim]."""
    kv, group, dim, fused = spec.num_kv_heads, spec.group, spec.head_dim, layout.qkv
    queries, ones = (kv, group, dim), (kv, 1, dim)
    q, one = np.arange(kv * group * dim).reshape(queries), np.arange(kv * dim).reshape(ones)
    if len(named) == 3:
        rows = [_gated_queries(spec)[:, :, 0] if layout.gated_queries else q, one, one]
    elif len(named) == 2:  # q, and k ‖ v
        rows = [q, one, one + one.size]
    elif fused == "concat":
        rows = [q, one + q.size, one + q.size + one.size]
    else:
        whole = _grouped(spec) if fused == "grouped" else _codegen(spec)
        rows = [whole[:, :group], whole[:, group : group + 1], whole[:, group + 1 :]]
    tensors = [named[min(i, len(named) - 1)] for i in range(3)]
    return list(zip(tensors, (0, group, group + 1), rows, strict=True))


def _grouped(spec: ModelSpec) -> np.ndarray:
    shape = (spec.num_kv_heads, spec.group + 2, spec.head_dim)
    return np.arange(math.prod(shape)).reshape(shape)


def _codegen(spec: ModelSpec) -> np.ndarray:
    """Four blocks, each q ‖ v ‖ k of a quarter of the heads."""
    stored = np.arange(3 * spec.num_heads * spec.head_dim).reshape(CODEGEN_BLOCKS, 3, -1, spec.head_dim)
    return stored[:, [0, 2, 1]].swapaxes(1, 2).reshape(spec.num_heads, 3, spec.head_dim)


def _rows_of(spec: ModelSpec, tensors: int, index: int, layout: Layout) -> int:
    """Rows of the tensor that holds q, k or v (`index` 0, 1, 2), where all three lie in so many `tensors`."""
    q, one = spec.num_heads * spec.head_dim * (1 + layout.gated_queries), spec.num_kv_heads * spec.head_dim
    if tensors == 1:
        return q + 2 * one
    return q if index == 0 else one * (2 if tensors == 2 else 1)


def _pairs(name: str, spec: ModelSpec, layout: Layout) -> np.ndarray | None:
    """For each element of a head, where it is stored: interleaved pairs (2i, 2i + 1) become (i, i + dim/2).

    Heads that are not rotated are stored so too: llama.cpp's converter does not ask whether Baichuan has ALiBi.
    """
    if not layout.interleaved:
        return None
    layer = re.search(r"\d+", name)
    rope = spec.kind(int(layer.group()) if layer else 0).rope
    dim = (rope and rope.dim) or spec.head_dim
    return np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2), np.arange(dim, spec.head_dim)])


def _qk_norm(name: str, spec: ModelSpec, named: Sequence[str], layout: Layout) -> list[Part]:
    """Weights of queries and of keys, each one tensor, or one per head (`{h}` in its name)."""
    kv, group, dim = spec.num_kv_heads, spec.group, spec.head_dim
    norm, order = spec.attention.qk_norm, _pairs(name, spec, layout)
    shared = norm is not None and norm.over == "head" and not layout.norm_per_head
    parts = []
    for tensor, first, box in zip(named, (0, group), ((kv, group, dim), (kv, 1, dim)), strict=True):
        heads = math.prod(box[:2])
        if "{h}" in tensor:
            for h in range(heads):
                start = (h // box[1], first + h % box[1], 0)
                parts.append(Part(tensor.replace("{h}", str(h)), (dim,), start, (1, 1, dim), rows=_one(dim, order)))
            continue
        rows = np.broadcast_to(np.arange(dim), box) if shared else np.arange(heads * dim).reshape(box)
        stored = (dim,) if shared else (heads, dim) if layout.norm_per_head else (heads * dim,)
        parts.append(Part(tensor, stored, (0, first, 0), box, rows=rows if order is None else rows[..., order]))
    return parts


def _experts(kind: str, parameter: Parameter, named: Sequence[str], layout: Layout) -> list[Part]:
    """Matrices or biases. A tensor per expert (`{e}` in its name), or all in one: stacked, or as DBRX has them.

    DBRX flattens the stack, and stores the down projection with the axes of the up projection.
    """
    first = len(parameter.shape) - parameter.inputs - 1  # axis of outputs
    (count, *middle), matrix = parameter.shape[:first], parameter.shape[first:]
    parts = []
    for j, tensor in enumerate(named):
        behind = (*(j for _ in middle), *(0 for _ in matrix))  # start of the box on the axes behind the expert's
        of_each = (*(1 for _ in middle), *matrix)
        if layout.stacked_experts:
            parts.append(Part(tensor, (count, *matrix), (0, *behind), (count, *of_each)))
        elif "{e}" in tensor:
            for e in range(count):
                own = tensor.replace("{e}", str(e))
                parts.append(Part(own, matrix, (e, *behind), (1, *of_each)))
        else:
            turned = kind == "experts_down"
            rows, width = matrix[::-1] if turned else matrix
            stored, order = (count * rows, width), (0, 2, 1) if turned else ()
            parts.append(Part(tensor, stored, (0, *behind), (count, *of_each), order=order))
    return parts


def _joint_experts(parameter: Parameter, named: str, layout: Layout) -> Part:
    """Biases are [expert, out]."""
    shape, axes = parameter.shape, range(len(parameter.shape))
    expert, *outputs = axes[: len(axes) - parameter.inputs]
    inputs = axes[len(axes) - parameter.inputs :]
    together = math.prod(shape[axis] for axis in outputs)
    widths = [shape[axis] for axis in inputs]
    if layout.joint_experts == "straight":
        return Part(named, (shape[0], together, *widths), (0,) * len(shape), shape)
    order = (expert, *inputs, *(outputs[::-1] if layout.joint_experts == "alternating" else outputs))
    return Part(named, (shape[0], *widths, together), (0,) * len(shape), shape, order=order)


def _one(dim: int, order: np.ndarray | None) -> np.ndarray:
    return (np.arange(dim) if order is None else order).reshape(1, 1, dim)
