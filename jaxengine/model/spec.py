"""What a model is, as data: the one description that converters write and the engine reads.

`ModelSpec` says how the decoder computes, `parameter_table` which arrays it computes with. Nothing here imports JAX, so
converters and the scheduler can read it anywhere. A family of checkpoints is mapped onto this by `convert/families`;
this file and `switches`, which it re-exports, know no checkpoint format and no tensor name of another library.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxengine.model.switches import (
    Activation,
    Attention,
    Block,
    Embedding,
    Experts,
    Head,
    LayerKind,
    Norm,
    NormKind,
    QKNorm,
    Rope,
    RopeKind,
    Routing,
)

__all__ = [
    "Activation",
    "Attention",
    "Block",
    "Embedding",
    "Experts",
    "Head",
    "LayerKind",
    "ModelSpec",
    "Norm",
    "NormKind",
    "Parameter",
    "ParameterSource",
    "QKNorm",
    "Rope",
    "RopeKind",
    "Routing",
    "parameter_count",
    "parameter_table",
]


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer.

    Layer i is of kind `kinds[i % len(kinds)]`. `residual_scale` multiplies what a branch adds to the residual stream.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    max_positions: int
    norm: Norm = field(default_factory=Norm)
    block: Block = "sequential"
    kinds: tuple[LayerKind, ...] = field(default_factory=lambda: (LayerKind(),))
    attention: Attention = field(default_factory=Attention)
    activation: Activation = "silu"
    gated: bool = True
    experts: Experts | None = None
    embedding: Embedding = field(default_factory=Embedding)
    head: Head = field(default_factory=Head)
    final_norm: bool = True
    residual_scale: float = 1.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size")
        for name in (*sizes, "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if not 1 <= len(self.kinds) <= self.num_layers:
            raise ValueError(f"{len(self.kinds)} kinds of layers for {self.num_layers} layers")
        if self.attention.alibi and len(self.attention.alibi) != self.num_heads:
            raise ValueError(f"{len(self.attention.alibi)} alibi slopes for {self.num_heads} heads")
        if self.experts is None and any(kind.experts for kind in self.kinds):
            raise ValueError("layers have experts, the model describes none")
        for kind in self.kinds:
            self._check_rope(kind)

    def _check_rope(self, kind: LayerKind) -> None:
        if kind.rope is None:
            return
        dim = kind.rope.dim or self.head_dim
        if dim % 2:
            raise ValueError(f"head_dim {dim} must be even to rotate")
        if dim > self.head_dim:
            raise ValueError(f"rope dim {dim} is more than head_dim {self.head_dim}")
        for name in ("short_factors", "long_factors") if kind.rope.kind == "longrope" else ():
            if len(getattr(kind.rope, name)) != dim // 2:
                raise ValueError(f"rope {name} needs {dim // 2} entries, got {len(getattr(kind.rope, name))}")

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def embedding_width(self) -> int:
        return self.embedding.width or self.hidden_size

    @property
    def by_position(self) -> bool:
        """Whether keys and values depend on the tokens up to theirs alone, so that a prefix can be shared."""
        return all(kind.rope is None or kind.rope.by_position for kind in self.kinds)

    def kind(self, layer: int) -> LayerKind:
        return self.kinds[layer % len(self.kinds)]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        """Raises ValueError, TypeError or KeyError where `text` is not what `to_json` writes."""
        return _decode(cls, json.loads(text))  # type: ignore[no-any-return]


def _decode(annotation: Any, value: Any) -> Any:
    """JSON back to frozen dataclasses and tuples, by their type annotations."""
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        return annotation(**{name: _decode(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return None if value is None else _decode(arguments[0], value)
    return value


@dataclass(frozen=True)
class Parameter:
    """One array of the model. `axes` names each dimension for sharding; None is never sharded.

    The last `inputs` axes of a matrix are what a product contracts: `[out…, in…]`, Hugging Face's order. How the device
    stores it is the choice of `jaxengine/model/linear.py`. The first `stacked` axes number whole matrices.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int = 0
    stacked: int = 0


def parameter_table(spec: ModelSpec) -> dict[str, Parameter]:
    """Every parameter of `spec`, by name, in forward order: the single source for init, sharding and loading.

    q, k and v are one array, grouped by key/value head: `qkv[j]` holds the `group` query heads that read kv head j,
    then that head's key and its value. Splitting axis 0 over devices therefore splits attention cleanly. `qk_norm` is
    laid out likewise, without the value. Gate and up projections are one array `[2, ffn, hidden]`: 0 is the gate, 1 is
    up; an MLP without a gate has `[1, ffn, hidden]`. Experts are stacked in front.
    """
    hidden, width = spec.hidden_size, spec.embedding_width
    table = {"embedding": Parameter((spec.vocab_size, width), ("vocab", "embed"))}
    if width != hidden:
        table["project_in"] = Parameter((hidden, width), ("embed", None), 1)
    if spec.embedding.positions:
        table["positions"] = Parameter((spec.max_positions, hidden), (None, "embed"))
    if spec.embedding.norm:
        table |= _norm("embedding_norm", spec)
    for i in range(spec.num_layers):
        table |= {f"layers.{i}.{name}": parameter for name, parameter in _layer(spec, spec.kind(i)).items()}
    if spec.final_norm:
        table |= _norm("final_norm", spec)
    if width != hidden:
        table["project_out"] = Parameter((width, hidden), (None, "embed"), 1)
    if not spec.head.tied:
        table["head"] = Parameter((spec.vocab_size, width), ("vocab", "embed"), 1)
    if spec.head.bias:
        table["head_bias"] = Parameter((spec.vocab_size,), ("vocab",))
    return table


def _norm(name: str, spec: ModelSpec) -> dict[str, Parameter]:
    vector = Parameter((spec.hidden_size,), ("embed",))
    present = {name: spec.norm.weight, f"{name}_bias": spec.norm.bias}
    return {key: vector for key, wanted in present.items() if wanted}


def _layer(spec: ModelSpec, kind: LayerKind) -> dict[str, Parameter]:
    table = _norm("attention_norm", spec) | _attention(spec)
    if spec.block == "sandwich":
        table |= _norm("attention_post_norm", spec)
    if spec.block != "parallel":
        table |= _norm("mlp_norm", spec)
    table |= _experts(spec, spec.experts) if spec.experts and kind.experts else _mlp(spec)
    if spec.block == "sandwich":
        table |= _norm("mlp_post_norm", spec)
    return table


def _attention(spec: ModelSpec) -> dict[str, Parameter]:
    hidden, kv, group, dim = spec.hidden_size, spec.num_kv_heads, spec.group, spec.head_dim
    heads = ("kv_heads", None, None)
    norm, qk_norm = spec.attention.qk_norm, Parameter((kv, group + 1, dim), heads)
    table = {
        "qkv": Parameter((kv, group + 2, dim, hidden), (*heads, "embed"), 1),
        "qkv_bias": Parameter((kv, group + 2, dim), heads) if spec.qkv_bias else None,
        "qk_norm": qk_norm if norm else None,
        "qk_norm_bias": qk_norm if norm and norm.bias else None,
        "out": Parameter((hidden, kv, group, dim), ("embed", *heads), 3),
        "out_bias": Parameter((hidden,), ("embed",)) if spec.out_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _mlp(spec: ModelSpec) -> dict[str, Parameter]:
    hidden, ffn, inner = spec.hidden_size, spec.ffn_size, 2 if spec.gated else 1
    table = {
        "gate_up": Parameter((inner, ffn, hidden), (None, "ffn", "embed"), 1),
        "gate_up_bias": Parameter((inner, ffn), (None, "ffn")) if spec.mlp_bias else None,
        "down": Parameter((hidden, ffn), ("embed", "ffn"), 1),
        "down_bias": Parameter((hidden,), ("embed",)) if spec.mlp_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _experts(spec: ModelSpec, experts: Experts) -> dict[str, Parameter]:
    hidden, count, ffn, shared = spec.hidden_size, experts.count, experts.ffn_size, experts.shared_ffn_size
    inner = 2 if spec.gated else 1
    table = {
        "router": Parameter((count, hidden), (None, "embed"), 1),
        "experts_gate_up": Parameter((count, inner, ffn, hidden), (None, None, "ffn", "embed"), 1, stacked=1),
        "experts_down": Parameter((count, hidden, ffn), (None, "embed", "ffn"), 1, stacked=1),
    }
    if shared:
        table |= {
            "shared_gate": Parameter((1, hidden), (None, "embed"), 1),
            "shared_gate_up": Parameter((inner, shared, hidden), (None, "ffn", "embed"), 1),
            "shared_down": Parameter((hidden, shared), ("embed", "ffn"), 1),
        }
    return table


class ParameterSource(Protocol):
    """Where parameters come from: a converter reading a checkpoint, or random numbers in a test."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def dtype(self) -> str:
        """The checkpoint's own floating type, e.g. "bfloat16": what "auto" means."""
        ...

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of parameter `name` in the table's layout, in any floating dtype (ml_dtypes included).

        Called from several threads at once. Raises `CheckpointError`-like ValueErrors that name file and tensor.
        """
        ...


def parameter_count(table: Mapping[str, Parameter]) -> int:
    return sum(int(np.prod(parameter.shape)) for parameter in table.values())
