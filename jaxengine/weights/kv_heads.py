"""A model with fewer key/value heads than devices: several devices hold one head, each with a share of its queries.

To the engine this is a model with as many key/value heads as devices and smaller groups. It computes the same function,
because the order of heads is kept and a copied key scores as its original does. Only the rows a device needs are read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

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
    """`source` with each key/value head `copies` times; in layers with another number of heads as often as `others`
    has it for that number.
    """

    source: ParameterSource
    copies: int
    others: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def spec(self) -> ModelSpec:
        spec, others = self.source.spec, self.others
        kinds = (replace(kind, kv_heads=kind.kv_heads * others.get(kind.kv_heads, 1)) for kind in spec.kinds)
        return replace(spec, num_kv_heads=spec.num_kv_heads * self.copies, kinds=tuple(kinds))

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def read(self, name: str, index: Index) -> np.ndarray:
        return self.copied(name, parameter_table(self.spec)[name], partial(self.source.read, name), index)

    def stored(self, name: str) -> StoredWeight | None:
        stored, parameter = self.source.stored(name), parameter_table(self.spec)[name]
        if stored is None:
            return None

        def read(component: Component, index: Index) -> np.ndarray:
            of_component = parameter.component(component, stored.format)
            return self.copied(name, of_component, partial(stored.read, component), index)

        return replace(stored, read=read)

    def copied(self, name: str, parameter: Parameter, read: Read, index: Index) -> np.ndarray:
        """The slice `index` of an array of parameter `name`, shaped as `parameter`, of which `read` gives slices with
        the original heads.
        """
        group, copies = self._share(name)
        if copies == 1 or AXIS not in parameter.axes[:-1]:  # as a last axis it numbers groups of inputs, which stay
            return read(index)
        index = index + (slice(None),) * (len(parameter.shape) - len(index))
        axis = parameter.axes.index(AXIS)
        heads = range(*index[axis].indices(parameter.shape[axis]))
        read_head = partial(_head, parameter, read, axis, index, group, copies)
        whole = np.concatenate([read_head(head) for head in heads], axis=axis)
        return whole[(*(slice(None),) * (axis + 1), index[axis + 1])] if axis + 1 < whole.ndim else whole

    def _share(self, name: str) -> tuple[int, int]:
        """Query heads of each key/value head in the layer of parameter `name`, and copies of each."""
        before, now = (spec.sized_for(name) for spec in (self.source.spec, self.spec))
        return now.group, now.num_kv_heads // before.num_kv_heads


def _head(parameter: Parameter, read: Read, axis: int, index: Index, group: int, copies: int, head: int) -> np.ndarray:
    """One head of the new numbering: its share of the queries, then what follows them: the key, the value.

    Where keys and values lie apart there are no queries.
    """
    original, share = divmod(head, copies)
    wanted = (*index[:axis], slice(original, original + 1), slice(None), *index[axis + 2 :])
    piece = read(wanted)
    if axis == 1 and parameter.axes[0] is None and parameter.shape[0] == KEYS_AND_VALUES:
        return piece
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
        table = parameter_table(self.source.spec)
        return {
            name: self._copied_units(name, adaptable) if table[name].axes[0] == AXIS else adaptable
            for name, adaptable in self.reader.targets.items()
        }

    def _copied_units(self, name: str, adaptable: Adaptable) -> Adaptable:
        """A head has fewer queries now, and still one key and one value."""
        if adaptable.axis != 1:
            return adaptable
        before, now = (spec.sized_for(name).group for spec in (self.source.source.spec, self.source.spec))
        return replace(adaptable, parts=adaptable.parts[:now] + adaptable.parts[before:])

    def read(self, name: str) -> AdapterWeights:
        adapter = self.reader.read(name)
        copied = {name: self._copied(name, matrix) for name, matrix in adapter.matrices.items()}
        return replace(adapter, matrices=copied)

    def _copied(self, name: str, matrix: LowRank) -> LowRank:
        parameter = parameter_table(self.source.spec)[name]
        outputs = len(parameter.shape) - parameter.inputs
        of_b = Parameter((*parameter.shape[:outputs], matrix.rank), (*parameter.axes[:outputs], None))
        return replace(matrix, b=self.source.copied(name, of_b, matrix.b.__getitem__, ()))


def replicate_adapters(reader: AdapterReader, source: ParameterSource) -> AdapterReader:
    """`reader` for what `replicate_heads` made of its model."""
    return ReplicatedReader(reader, source) if isinstance(source, ReplicatedSource) else reader


def replicate_heads(source: ParameterSource, devices: int) -> ParameterSource:
    """`source` as `devices` devices can share it: itself, unless it has fewer key/value heads that can be copied."""
    spec = source.spec
    if not spec.num_kv_heads:
        return source
    copies = {heads: _copies(spec.num_heads, heads, devices) for heads, _ in spec.heads}
    base = _copies(spec.num_heads, spec.num_kv_heads, devices)
    return source if max(base, *copies.values()) == 1 else ReplicatedSource(source, base, copies)


def _copies(queries: int, heads: int, devices: int) -> int:
    """How many copies of `heads` key/value heads `devices` devices need, 1 where as many cannot be made."""
    copies = devices // heads
    return 1 if devices % heads or copies < 2 or (queries // heads) % copies else copies
