"""Fewer key/value heads than devices: each head is held by several of them, with a share of its queries each.

Seen from the engine this is a model with as many key/value heads as devices and smaller groups: the same function,
since head order is kept and a copied key scores as its original. Only the rows a device needs are read.
"""

from dataclasses import dataclass, replace

import numpy as np

from jaxengine.spec.model import ModelSpec
from jaxengine.spec.parameters import Parameter, ParameterSource, parameter_table

AXIS = "kv_heads"


@dataclass(frozen=True)
class ReplicatedSource:
    """`source` with each key/value head `copies` times."""

    source: ParameterSource
    copies: int

    @property
    def spec(self) -> ModelSpec:
        spec = self.source.spec
        return replace(spec, num_kv_heads=spec.num_kv_heads * self.copies)

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        parameter = parameter_table(self.spec)[name]
        if AXIS not in parameter.axes:
            return self.source.read(name, index)
        index = index + (slice(None),) * (len(parameter.shape) - len(index))
        axis = parameter.axes.index(AXIS)
        heads = range(*index[axis].indices(parameter.shape[axis]))
        whole = np.concatenate([self._head(name, parameter, axis, index, head) for head in heads], axis=axis)
        return whole[(*(slice(None),) * (axis + 1), index[axis + 1])]

    def _head(self, name: str, parameter: Parameter, axis: int, index: tuple[slice, ...], head: int) -> np.ndarray:
        """One head of the new numbering: its share of the queries, then what follows them: the key, the value."""
        original, share = divmod(head, self.copies)
        wanted = (*index[:axis], slice(original, original + 1), slice(None), *index[axis + 2 :])
        piece = self.source.read(name, wanted)
        group = self.spec.group
        followers = parameter.shape[axis + 1] - group
        queries = np.arange(share * group, (share + 1) * group)
        return piece.take([*queries, *range(piece.shape[axis + 1] - followers, piece.shape[axis + 1])], axis=axis + 1)


def replicate_heads(source: ParameterSource, devices: int) -> ParameterSource:
    """`source` as `devices` devices can share it: itself, unless it has fewer key/value heads that can be copied."""
    spec = source.spec
    if not spec.num_kv_heads:
        return source
    copies = devices // spec.num_kv_heads
    if devices % spec.num_kv_heads or copies < 2 or spec.group % copies:
        return source
    return ReplicatedSource(source, copies)
