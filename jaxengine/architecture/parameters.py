"""The parameters of a model: one table for init, sharding, loading and quantisation, and the protocol of their source.

Like the rest of `spec`, this file imports no JAX and knows no checkpoint format.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jaxengine.architecture.model import Experts, LayerKind, ModelSpec, RelativePositions, StateSpace, Traced
from jaxengine.architecture.weight_format import CODES, Component, StoredWeight, WeightFormat

ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class Parameter:
    """One array of the model. `axes` names each dimension for sharding; None is never sharded.

    A product contracts the last `inputs` axes of a matrix: `[out…, in…]`, Hugging Face's order. In which order the
    device stores them is the choice of `jaxengine/model/linear.py`. The first `stacked` axes number whole matrices. The
    rows of a matrix `by_row` are looked up one by one, so the device never stores it input-major. What is no float has
    a `dtype` of its own, whatever that of weights is.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int = 0
    stacked: int = 0
    by_row: bool = False
    dtype: str | None = None

    def component(self, component: Component, format: WeightFormat) -> "Parameter":
        """One array of a quantised matrix. Values keep all axes; scales and zeros have groups in place of inputs. An
        order has the inputs alone, as one axis.
        """
        if component == "values":
            return self
        if component == "words":
            return Parameter((*self.shape[:-1], self.shape[-1] // CODES), self.axes)
        outputs = len(self.shape) - self.inputs
        if component == "order":
            return Parameter((math.prod(self.shape[outputs:]),), self.axes[outputs : outputs + 1])
        groups = () if format.group == 0 else (math.prod(self.shape[outputs:]) // format.group,)
        return Parameter(self.shape[:outputs] + groups, self.axes[: outputs + len(groups)])


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A host array, not filled, that JAX's CPU backend takes over. It copies arrays that do not begin at 64 bytes."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


def parameter_table(spec: ModelSpec) -> dict[str, Parameter]:
    """Every parameter of `spec`, by name, in forward order: the single source for init, sharding and loading.

    q, k and v are one array, grouped by key/value head: `qkv[j]` holds the `group` query heads that read kv head j,
    then that head's key and its value. Splitting axis 0 over devices therefore splits attention cleanly. `qk_norm` is
    laid out likewise, without the value. Gate and up projections are one array `[2, ffn, hidden]`: 0 is the gate, 1 is
    up; an MLP without a gate has `[1, ffn, hidden]`. Experts have one more axis in front, which numbers them.
    `cross_kv` makes keys (0) and values (1) for a layer of the decoder from the encoder's output.
    """
    hidden, width = spec.hidden_size, spec.embedding_width
    table = {"embedding": Parameter((spec.vocab_size, width), ("vocab", "embed"), 1, by_row=True)}
    if width != hidden:
        table["project_in"] = Parameter((hidden, width), ("embed", None), 1)
    if spec.embedding.positions:
        table["positions"] = Parameter((spec.max_positions, hidden), (None, "embed"))
    if spec.embedding.norm:
        table |= _norm("embedding_norm", spec)
    if spec.encoder:
        encoder = parameter_table(spec.encoder_spec)
        table |= {f"encoder.{name}": parameter for name, parameter in encoder.items() if name != "embedding"}
    if spec.attention.relative and not spec.attention.relative.by_layer:
        table["relative"] = _relative(spec, spec.attention.relative)
    if spec.traced:
        return table | _traced(spec.traced) | _head(spec)
    for i in range(spec.num_layers):
        table |= {f"layers.{i}.{name}": parameter for name, parameter in _layer(spec, spec.kind(i)).items()}
    if spec.final_norm:
        table |= _norm("final_norm", spec)
    if width != hidden:
        table["project_out"] = Parameter((width, hidden), (None, "embed"), 1)
    return table | _head(spec)


def _head(spec: ModelSpec) -> dict[str, Parameter]:
    table = {}
    if not spec.head.tied:
        table["head"] = Parameter((spec.vocab_size, spec.embedding_width), ("vocab", "embed"), 1)
    if spec.head.bias:
        table["head_bias"] = Parameter((spec.vocab_size,), ("vocab",))
    return table


def _traced(traced: Traced) -> dict[str, Parameter]:
    return {f"module.{array.name}": Parameter(array.shape, (None,) * len(array.shape)) for array in traced.arrays}


def _norm(name: str, spec: ModelSpec) -> dict[str, Parameter]:
    vector = Parameter((spec.hidden_size,), ("embed",))
    present = {name: spec.norm.weight, f"{name}_bias": spec.norm.bias}
    return {key: vector for key, wanted in present.items() if wanted}


def _relative(spec: ModelSpec, relative: RelativePositions) -> Parameter:
    return Parameter((relative.buckets, spec.num_kv_heads, spec.group), (None, "kv_heads", None))


def _layer(spec: ModelSpec, kind: LayerKind) -> dict[str, Parameter]:
    if spec.state_space:
        return _norm("mixer_norm", spec) | _state_space(spec.hidden_size, spec.state_space)
    table = _norm("attention_norm", spec) | _attention(spec)
    if spec.block == "sandwich":
        table |= _norm("attention_post_norm", spec)
    if spec.encoder:
        table |= _norm("cross_norm", spec) | _cross_attention(spec)
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
    relative = spec.attention.relative
    table = {
        "qkv": Parameter((kv, group + 2, dim, hidden), (*heads, "embed"), 1),
        "qkv_bias": Parameter((kv, group + 2, dim), heads) if spec.qkv_bias else None,
        "qk_norm": qk_norm if norm else None,
        "qk_norm_bias": qk_norm if norm and norm.bias else None,
        "relative": _relative(spec, relative) if relative and relative.by_layer else None,
        "sinks": Parameter((kv, group), ("kv_heads", None)) if spec.attention.sinks else None,
        "out": Parameter((hidden, kv, group, dim), ("embed", *heads), 3),
        "out_bias": Parameter((hidden,), ("embed",)) if spec.out_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _state_space(hidden: int, space: StateSpace) -> dict[str, Parameter]:
    """`in_proj` is [2, channels, hidden]: 0 feeds the convolution, 1 is the gate. `x_proj` makes time step, B and C."""
    channels, out = space.channels, space.rank + 2 * space.size
    vector = Parameter((channels,), ("channels",))
    table = {
        "in_proj": Parameter((2, channels, hidden), (None, "channels", "embed"), 1),
        "in_proj_bias": Parameter((2, channels), (None, "channels")) if space.bias else None,
        "conv": Parameter((channels, space.kernel), ("channels", None)),
        "conv_bias": vector if space.conv_bias else None,
        "x_proj": Parameter((out, channels), (None, "channels"), 1),
        "dt_proj": Parameter((channels, space.rank), ("channels", None), 1),
        "dt_proj_bias": vector,
        "a_log": Parameter((channels, space.size), ("channels", None)),
        "skip": vector,
        "out_proj": Parameter((hidden, channels), ("embed", "channels"), 1),
        "out_proj_bias": Parameter((hidden,), ("embed",)) if space.bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _cross_attention(spec: ModelSpec) -> dict[str, Parameter]:
    hidden, kv, group, dim = spec.hidden_size, spec.num_kv_heads, spec.group, spec.head_dim
    heads = ("kv_heads", None, None)
    table = {
        "cross_q": Parameter((kv, group, dim, hidden), (*heads, "embed"), 1),
        "cross_q_bias": Parameter((kv, group, dim), heads) if spec.qkv_bias else None,
        "cross_kv": Parameter((2, kv, dim, hidden), (None, "kv_heads", None, "embed"), 1),
        "cross_kv_bias": Parameter((2, kv, dim), (None, "kv_heads", None)) if spec.qkv_bias else None,
        "cross_out": Parameter((hidden, kv, group, dim), ("embed", *heads), 3),
        "cross_out_bias": Parameter((hidden,), ("embed",)) if spec.out_bias else None,
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
    if experts.bias:
        table |= {
            "router_bias": Parameter((count,), (None,)),
            "experts_gate_up_bias": Parameter((count, inner, ffn), (None, None, "ffn")),
            "experts_down_bias": Parameter((count, hidden), (None, "embed")),
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
        """The checkpoint's own floating type, e.g. "bfloat16"; "auto" takes it on an accelerator."""
        ...

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of parameter `name` in the table's layout, in any floating dtype (ml_dtypes included).

        Every parameter can be read so; one that is stored quantised is what its components stand for.
        Called from several threads at once. Raises `CheckpointError`-like ValueErrors that name file and tensor.
        """
        ...

    def stored(self, name: str) -> StoredWeight | None:
        """How matrix `name` is read as it is stored, where the checkpoint holds it quantised; None for floats."""
        ...
