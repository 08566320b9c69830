"""A checkpoint's tensors with an adapter merged: the model that PEFT's `merge_and_unload` makes, read by slice."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import ml_dtypes
import numpy as np

from convert.adapters.adapter import Adapter, Delta
from convert.errors import CheckpointError
from convert.formats.quantized_matrix import read_view
from convert.formats.tensors import Index, Tensors
from convert.mapping.renamed_tensors import renamed

ROWS = 1024  # of a matrix whose lengths are computed at once
# Modules that transformers calls otherwise than the checkpoints it reads.
OTHER_NAMES = ((r"\.mlp\.(gate|router)$", ".block_sparse_moe.gate"),)


class MergedTensors(Tensors):
    """`tensors` with `adapter`. What it changes is computed in f32 and rounded to the checkpoint's type.

    Args:
        renames: from names of modules to those of `tensors`.

    Raises:
        CheckpointError: the adapter changes what the model does not have, has another shape, or is quantised.
    """

    def __init__(self, tensors: Tensors, adapter: Adapter, renames: Sequence[tuple[str, str]] = ()) -> None:
        self._tensors = tensors
        self._adapter = adapter
        self._renames = tuple(renames)
        self.deltas: dict[str, Delta] = {}
        self._biases: dict[str, np.ndarray] = {}
        self._replaced = {renamed(name, self._renames): values for name, values in adapter.replaced.items()}
        for delta in adapter.deltas:
            self._place(delta)
        square = self._squares_in_out()
        self._in_out = {name: self._is_in_out(name, delta, square) for name, delta in self.deltas.items()}
        self._lengths = lru_cache(maxsize=None)(self._row_lengths)

    def __contains__(self, name: object) -> bool:
        return name in self._replaced or name in self._tensors

    def __iter__(self) -> Iterator[str]:
        yield from self._tensors
        yield from (name for name in self._replaced if name not in self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._replaced[name].shape if name in self._replaced else self._tensors.shape(name)

    def dtype(self, name: str) -> str:
        return self._tensors.dtype(name) if name in self._tensors else "float32"

    def where(self, name: str) -> str:
        return self._tensors.where(name) if name in self._tensors else str(self._adapter.directory)

    def changes(self, name: str) -> bool:
        """Whether the adapter changes a number of tensor `name`."""
        if name in self.deltas or name in self._biases or name not in self._tensors:
            return name in self
        everything = tuple(slice(None) for _ in self.shape(name))
        return name in self._replaced and not np.array_equal(
            self._base(name, self.shape(name), everything), self._tensors.read(name, self.shape(name), everything)
        )

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        if name in self._biases:
            values = self._base(name, self.shape(name), ()).astype(np.float32) + self._biases[name]
            return self._rounded(name, values).reshape(view)[index]
        if name not in self.deltas:
            return self._base(name, view, index)
        return read_view(self.shape(name), view, index, lambda rows, columns: self._merged(name, rows, columns))

    def _base(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        if name in self._replaced:
            return self._rounded(name, self._replaced[name]).reshape(view)[index]
        return self._tensors.read(name, view, (*index, *(slice(None) for _ in view[len(index) :])))

    def _merged(self, name: str, rows: slice, columns: slice) -> np.ndarray:
        """The part of a matrix at `rows` and `columns` of what is stored."""
        delta = self.deltas[name]
        base = self._base(name, self.shape(name), (rows, columns)).astype(np.float32)
        outputs, inputs = (columns, rows) if self._in_out[name] else (rows, columns)
        change = delta.scale * (delta.b[outputs] @ delta.a[:, inputs])
        summed = base + (change.T if self._in_out[name] else change)
        if delta.magnitude is not None:
            scales = (delta.magnitude / self._lengths(name))[outputs]
            summed *= scales if self._in_out[name] else scales[:, None]
        return self._rounded(name, summed)

    def _row_lengths(self, name: str) -> np.ndarray:
        """f32 [out]: the length of each output's weights with the change."""
        delta, (outputs, _) = self.deltas[name], self.deltas[name].shape
        lengths = np.empty(outputs, np.float32)
        for start in range(0, outputs, ROWS):
            rows = slice(start, min(start + ROWS, outputs))
            at = (slice(None), rows) if self._in_out[name] else (rows, slice(None))
            base = self._base(name, self.shape(name), at).astype(np.float32)
            base = base.T if self._in_out[name] else base
            lengths[rows] = np.linalg.norm(base + delta.scale * (delta.b[rows] @ delta.a), axis=1)
        return lengths

    def _rounded(self, name: str, values: np.ndarray) -> np.ndarray:
        dtype = self.dtype(name)
        return values.astype(getattr(ml_dtypes, dtype, None) or dtype, copy=False)

    def _place(self, delta: Delta) -> None:
        weight = self._name_of(delta.name)
        shape = self.shape(weight)
        if shape not in (delta.shape, delta.shape[::-1]):
            raise self._error(delta, f"changes [out, in] {list(delta.shape)}, the model has {list(shape)}")
        if self._tensors.quantized(weight) is not None:
            raise self._error(delta, "cannot be merged with weights that are quantised; name the base in floats")
        self.deltas[weight] = delta
        if delta.bias is not None:
            bias = weight.removesuffix("weight") + "bias"
            if bias not in self:
                raise self._error(delta, "has a bias (lora_bias), the model's module has none")
            self._biases[bias] = delta.scale * delta.bias

    def _name_of(self, module: str) -> str:
        """The tensor that module `module` has as its matrix."""
        names = (module, renamed(module, self._renames), renamed(module, OTHER_NAMES))
        found = next((f"{name}.weight" for name in names if f"{name}.weight" in self), None)
        ends = [name for name in self if name.endswith(f".{names[1]}.weight")]
        if found is None and len(ends) != 1:
            raise CheckpointError(f"{self._adapter.directory}: changes {module!r}, the model has no such module")
        return found or ends[0]

    def _squares_in_out(self) -> bool:
        """Whether square matrices are [in, out]: as others of the model are, else as the configuration says."""
        told = {
            self.shape(name) != delta.shape
            for name, delta in self.deltas.items()
            if delta.shape[0] != delta.shape[1] and not delta.embedding
        }
        return told.pop() if len(told) == 1 else self._adapter.in_out

    def _is_in_out(self, name: str, delta: Delta, square: bool) -> bool:
        outputs, inputs = delta.shape
        return delta.embedding or (square if outputs == inputs else self.shape(name) == (inputs, outputs))

    def _error(self, delta: Delta, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._adapter.directory}: the adapter's module {delta.name!r} {problem}")
