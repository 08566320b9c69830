"""A model with fewer key/value heads than devices: several devices hold one head, each with a share of its queries.

To the engine this is a model with as many key/value heads as devices and smaller groups. It computes the same function,
because the order of heads is kept and a copied key scores as its original does. Only the rows a device needs are read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jaxengine.architecture.adaptation import Adaptable, AdapterReader, AdapterWeights, LowRank
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, ParameterSource, parameter_table
from jaxengine.architecture.weight_format import Component, StoredWeight

AXIS = "kv_heads"
KEYS_AND_VALUES = 2

Index = tuple[slice, ...]
Read = Callable[[Index], np.ndarray]


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

    def read(self, name: str, index: Index) -> np.ndarray:
        return self.copied(parameter_table(self.spec)[name], partial(self.source.read, name), index)

    def stored(self, name: str) -> StoredWeight | None:
        stored, parameter = self.source.stored(name), parameter_table(self.spec)[name]
        if stored is None:
            return None

        def read(component: Component, index: Index) -> np.ndarray:
            return self.copied(parameter.component(component, stored.format), partial(stored.read, component), index)

        return replace(stored, read=read)

    def copied(self, parameter: Parameter, read: Read, index: Index) -> np.ndarray:
        """The slice `index` of an array shaped as `parameter`, of which `read` gives slices with the original heads."""
        if AXIS not in parameter.axes[:-1]:  # as a last axis it numbers groups, and groups of inputs stay as they are
            return read(index)
        index = index + (slice(None),) * (len(parameter.shape) - len(index))
        axis = parameter.axes.index(AXIS)
        heads = range(*index[axis].indices(parameter.shape[axis]))
        whole = np.concatenate([self._head(parameter, read, axis, index, head) for head in heads], axis=axis)
        return whole[(*(slice(None),) * (axis + 1), index[axis + 1])] if axis + 1 < whole.ndim else whole

    def _head(self, parameter: Parameter, read: Read, axis: int, index: Index, head: int) -> np.ndarray:
        """One head of the new numbering: its share of the queries, then what follows them: the key, the value.

        Where keys and values lie apart there are no queries.
        """
        original, share = divmod(head, self.copies)
        wanted = (*index[:axis], slice(original, original + 1), slice(None), *index[axis + 2 :])
        piece = read(wanted)
        if axis == 1 and parameter.axes[0] is None and parameter.shape[0] == KEYS_AND_VALUES:
            return piece
        group = self.spec.group
        followers = parameter.shape[axis + 1] - group
        queries = np.arange(share * group, (share + 1) * group)
        return piece.take([*queries, *range(piece.shape[axis + 1] - followers, piece.shape[axis + 1])], axis=axis + 1)


@dataclass(frozen=True)
class ReplicatedReader:
    """The adapters of `reader` for the model of `source`, whose heads are copied."""

    reader: AdapterReader
    source: ReplicatedSource

    @property
    def targets(self) -> Mapping[str, Adaptable]:
        return {name: self._copied_units(adaptable) for name, adaptable in self.reader.targets.items()}

    def _copied_units(self, adaptable: Adaptable) -> Adaptable:
        """A head has fewer queries now, and still one key and one value."""
        if adaptable.axis != 1:
            return adaptable
        group = self.source.source.spec.group
        return replace(adaptable, parts=adaptable.parts[: self.source.spec.group] + adaptable.parts[group:])

    def read(self, name: str) -> AdapterWeights:
        adapter = self.reader.read(name)
        copied = {name: self._copied(name, matrix) for name, matrix in adapter.matrices.items()}
        return replace(adapter, matrices=copied)

    def _copied(self, name: str, matrix: LowRank) -> LowRank:
        parameter = parameter_table(self.source.spec)[name]
        outputs = len(parameter.shape) - parameter.inputs
        of_b = Parameter((*parameter.shape[:outputs], matrix.rank), (*parameter.axes[:outputs], None))
        return replace(matrix, b=self.source.copied(of_b, matrix.b.__getitem__, ()))


def replicate_adapters(reader: AdapterReader, source: ParameterSource) -> AdapterReader:
    """`reader` for what `replicate_heads` made of its model."""
    return ReplicatedReader(reader, source) if isinstance(source, ReplicatedSource) else reader


def replicate_heads(source: ParameterSource, devices: int) -> ParameterSource:
    """`source` as `devices` devices can share it: itself, unless it has fewer key/value heads that can be copied."""
    spec = source.spec
    if not spec.num_kv_heads:
        return source
    copies = devices // spec.num_kv_heads
    if devices % spec.num_kv_heads or copies < 2 or spec.group % copies:
        return source
    return ReplicatedSource(source, copies)
