"""The parameters of a model: one table for init, sharding, loading and quantisation, and the protocol of their source.

Like the rest of `spec`, this file imports no JAX and knows no checkpoint format.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from jaxengine.architecture.layer_parameters import layer_parameters, norm_parameters, relative_parameter
from jaxengine.architecture.model import ModelSpec, Traced
from jaxengine.architecture.parameter import Parameter
from jaxengine.architecture.vision_parameters import vision_parameters
from jaxengine.architecture.weight_format import StoredWeight

__all__ = ["Parameter", "ParameterSource", "empty", "parameter_table"]

ALIGNMENT = 64  # bytes


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
    A layer that reads the keys and values of another has `q` alone, `[kv, group, dim, hidden]`.
    `cross_kv` makes keys (0) and values (1) for a layer of the decoder from the encoder's output, or from a picture's
    rows.
    """
    hidden, width = spec.hidden_size, spec.embedding_width
    table = {"embedding": Parameter((spec.vocab_size, width), ("vocab", "embed"), 1)}
    if width != hidden:
        table["project_in"] = Parameter((hidden, width), ("embed", None), 1)
    if spec.embedding.positions:
        table["positions"] = Parameter((spec.max_positions, hidden), (None, "embed"))
    if spec.embedding.norm:
        table |= norm_parameters("embedding_norm", spec)
    if each := spec.embedding.layer_width:
        layers = spec.num_layers
        table["layer_embedding"] = Parameter((spec.vocab_size, layers * each), ("vocab", None))
        table["layer_projection"] = Parameter((layers, each, hidden), (None, None, "embed"), 1)
        table["layer_input_norm"] = Parameter((each,), (None,))
    if spec.encoder:
        encoder = parameter_table(spec.encoder_spec)
        table |= {f"encoder.{name}": parameter for name, parameter in encoder.items() if name != "embedding"}
    if spec.attention.relative and not spec.attention.relative.by_layer:
        table["relative"] = relative_parameter(spec, spec.attention.relative)
    if spec.traced:
        return table | _traced(spec.traced) | _head(spec)
    for i in range(spec.num_layers):
        table |= {f"layers.{i}.{name}": parameter for name, parameter in layer_parameters(spec, spec.kind(i)).items()}
    if spec.final_norm:
        table |= norm_parameters("final_norm", spec)
    if width != hidden:
        table["project_out"] = Parameter((width, hidden), (None, "embed"), 1)
    return table | _head(spec) | (vision_parameters(spec) if spec.vision else {})


def _head(spec: ModelSpec) -> dict[str, Parameter]:
    table = {}
    if not spec.head.tied:
        table["head"] = Parameter((spec.vocab_size, spec.embedding_width), ("vocab", "embed"), 1)
    if spec.head.bias:
        table["head_bias"] = Parameter((spec.vocab_size,), ("vocab",))
    return table


def _traced(traced: Traced) -> dict[str, Parameter]:
    return {f"module.{array.name}": Parameter(array.shape, (None,) * len(array.shape)) for array in traced.arrays}


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
