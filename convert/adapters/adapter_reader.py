"""Adapters that are added to a model while it runs, as the engine takes them: per matrix of the parameter table.

The recipes that make a parameter of a checkpoint's rows place the rows of an adapter's `b` just so, which makes an
adapter as independent of how its model is stored as the parameters are. `MergedTensors` merges the same adapters while
a model is loaded, and more: what is refused here by name changes more than matrices of layers, or not by a product.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from convert.adapters.adapter import Adapter, Delta
from convert.adapters.matrix_names import matrix_of
from convert.errors import CheckpointError
from convert.formats.quantized_matrix import Index
from convert.mapping.composition import assemble, of_groups, output_major
from convert.mapping.part import Recipe
from jaxengine.architecture.adaptation import Adaptable, AdapterWeights, LowRank
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, parameter_table

OF_LAYER = r"^(encoder\.)?layers\.\d+\."
OF_PICTURES = ".cross_kv"  # what makes keys and values of pictures, once for all who see them
MERGE = "which cannot be added while a model runs; merge the adapter at load (--merge-adapter)"


class AdapterReader:
    """The `jaxengine.architecture.adaptation.AdapterReader` of one model. Keeps nothing of what it has read.

    Args:
        recipes: of the parameters of `spec`, from the checkpoint that adapters are trained on.
        renames: from names of modules to those of that checkpoint.
        find: the adapter of a name.
    """

    def __init__(
        self,
        spec: ModelSpec,
        recipes: Mapping[str, Recipe],
        renames: Sequence[tuple[str, str]],
        find: Callable[[str], Adapter],
    ) -> None:
        self._names = {part.tensor for recipe in recipes.values() for part in recipe.parts}
        self._renames = tuple(renames)
        self._find = find
        self._matrices = {
            name: _Matrix(parameter, recipes[name])
            for name, parameter in parameter_table(spec).items()
            if parameter.inputs and not parameter.stacked and re.match(OF_LAYER, name)
            if not (spec.cross_layers and name.endswith(OF_PICTURES))
        }
        self._shapes = {tensor: shape for matrix in self._matrices.values() for tensor, shape in matrix.stored.items()}
        self.targets = {name: matrix.adaptable for name, matrix in self._matrices.items()}

    def read(self, name: str) -> AdapterWeights:
        """
        Raises:
            MissingAdapter: there is none.
            CheckpointError: it is malformed, made for another model, or does what only merging can.
        """
        adapter = self._find(name)
        for tensor in adapter.replaced:
            problem = f"has tensor {tensor!r} whole (`bias` or `modules_to_save`)"
            raise CheckpointError(f"{adapter.directory}: the adapter {problem}, {MERGE}")
        deltas = self._by_tensor(adapter)
        changes = {target: matrix.change(deltas) for target, matrix in self._matrices.items()}
        matrices = {target: change for target, change in changes.items() if change}
        return AdapterWeights(name, str(adapter.directory), _digest(matrices), matrices)

    def _by_tensor(self, adapter: Adapter) -> dict[str, Delta]:
        """What is added to each tensor of the checkpoint."""
        deltas: dict[str, Delta] = {}
        for delta in adapter.deltas:
            tensor = matrix_of(delta.name, self._names, self._renames)
            if problem := self._problem(delta, tensor, deltas):
                raise CheckpointError(f"{adapter.directory}: the adapter's module {delta.name!r} {problem}")
            assert tensor is not None
            deltas[tensor] = _scaled(delta)
            if not np.isfinite(deltas[tensor].b).all():
                problem = f"has numbers that are not finite once they are scaled by {delta.scale:g}"
                raise CheckpointError(f"{adapter.directory}: the adapter's module {delta.name!r} {problem}")
        return deltas

    def _problem(self, delta: Delta, tensor: str | None, deltas: Mapping[str, Delta]) -> str | None:
        """Why `delta` cannot be added to `tensor`; None if it can."""
        if tensor is None:
            return "is not in the model"
        if delta.magnitude is not None:
            return f"has a magnitude (use_dora), {MERGE}"
        if delta.bias is not None:
            return f"has a bias (lora_bias), {MERGE}"
        if delta.embedding or tensor not in self._shapes:
            return f"is {tensor!r}, no matrix of a layer's own (embedding, head, expert, pictures), {MERGE}"
        if tensor in deltas:
            return f"changes {tensor!r}, as {deltas[tensor].name!r} does"
        if delta.shape != self._shapes[tensor]:
            return f"changes [out, in] {list(delta.shape)}, the model has {list(self._shapes[tensor])}"
        return None


class _Matrix:
    """One matrix of the parameter table, and where the rows of the checkpoint's matrices are in it.

    stored: [out, in] of each of those, in the order in which modules are numbered.
    """

    def __init__(self, parameter: Parameter, recipe: Recipe) -> None:
        parts = tuple(map(output_major, recipe.parts))
        outputs = len(parameter.shape) - parameter.inputs
        self._outputs, self._inputs = parameter.shape[:outputs], math.prod(parameter.shape[outputs:])
        self._recipe = Recipe(parts)
        self.stored: dict[str, tuple[int, int]] = {part.tensor: (part.stored[0], part.stored[1]) for part in parts}
        self.adaptable = self._adaptable()

    def _adaptable(self) -> Adaptable:
        if len(self.stored) == 1:
            return Adaptable()
        parts, numbers = self._recipe.parts, list(self.stored)
        axis = next(axis for axis in range(len(self._outputs)) if len({part.start[axis] for part in parts}) > 1)
        units = [0] * self._outputs[axis]
        for part in parts:
            first, count = part.start[axis], part.shape[axis]
            units[first : first + count] = [numbers.index(part.tensor)] * count
        return Adaptable(tuple(units), axis)

    def change(self, deltas: Mapping[str, Delta]) -> LowRank | None:
        """What `deltas`, by tensor and already scaled, add to this matrix; None where they do not touch it."""
        ranks = [len(deltas[tensor].a) for tensor in self.stored if tensor in deltas]
        if not ranks:
            return None
        rank, inputs = max(ranks), self._inputs
        a = np.zeros((len(self.stored), rank, inputs), np.float32)
        rows: dict[str, np.ndarray] = {}  # f32 [out, rank] of each tensor
        for number, (tensor, (outputs, _)) in enumerate(self.stored.items()):
            rows[tensor] = np.zeros((outputs, rank), np.float32)
            if delta := deltas.get(tensor):
                a[number, : len(delta.a)] = delta.a
                rows[tensor][:, : len(delta.a)] = delta.b

        def read(tensor: str, view: tuple[int, ...], index: Index) -> np.ndarray:
            return rows[tensor].reshape(view)[index]

        whole = [(0, size) for size in (*self._outputs, rank)]
        b = assemble(of_groups(self._recipe, len(self._outputs), rank), whole, read)
        return LowRank(a, np.ascontiguousarray(b))


def _scaled(delta: Delta) -> Delta:
    with np.errstate(all="ignore"):  # the caller looks for what is not finite
        return replace(delta, b=delta.b * np.float32(delta.scale), scale=1.0)


def _digest(matrices: Mapping[str, LowRank]) -> bytes:
    digest = hashlib.sha256()
    for name, matrix in sorted(matrices.items()):
        digest.update(f"{name} {matrix.a.shape} {matrix.b.shape}\n".encode())
        digest.update(matrix.a.data)
        digest.update(matrix.b.data)
    return digest.digest()
