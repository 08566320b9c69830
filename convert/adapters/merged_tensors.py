"""A checkpoint's tensors with an adapter merged: the model that PEFT's `merge_and_unload` makes, read by slice."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import ml_dtypes
import numpy as np

from convert.adapters.adapter import Adapter, Delta
from convert.adapters.matrix_names import matrix_of
from convert.errors import CheckpointError
from convert.formats.quantized_matrix import QuantizedMatrix, read_view
from convert.formats.tensors import Index, Tensors, whole
from convert.mapping.renamed_tensors import renamed
from jaxengine.architecture.parameters import empty

# Of a matrix, that are computed at once, in f32. 14336 x 4096 in bf16 with rank 16 took 0.15 s with 64 to 256 rows,
# 0.17 with 512, 0.6 with 1024 and 2.2 at first with all, whose memory is fresh (NumPy 2.4, 2 cores of a Xeon).
ROWS = 128
OF_LAYER = r"\.\d+\."


class MergedTensors(Tensors):
    """`tensors` with `adapter`. What it changes is computed in f32 and rounded to the checkpoint's type.

    Args:
        renames: from names of tensors to those of `tensors`.
        transposed: matrices of layers are `[in, out]`.

    Raises:
        CheckpointError: the adapter changes what the model does not have, has another shape, or is quantised, or
            changes it twice. When it is read: a sum is larger than the checkpoint's type can hold.
    """

    def __init__(
        self, tensors: Tensors, adapter: Adapter, renames: Sequence[tuple[str, str]] = (), *, transposed: bool = False
    ) -> None:
        self._tensors = tensors
        self.adapter = adapter
        self._renames = tuple(renames)
        self._transposed = transposed
        self.deltas: dict[str, Delta] = {}
        self._biases: dict[str, np.ndarray] = {}
        self._replaced: dict[str, np.ndarray] = {}
        for name, values in adapter.replaced.items():
            self._replace(renamed(name, self._renames), values)
        for delta in adapter.deltas:
            self._place(delta)
        self._lengths = lru_cache(maxsize=None)(self._lengths_of_outputs)

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
        return str(self.adapter.directory) if name in self._replaced else self._tensors.where(name)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return None if name in self._replaced or name in self.deltas else self._tensors.quantized(name)

    def changes(self, name: str) -> bool:
        """Whether the adapter changes a number of tensor `name`."""
        if name in self.deltas or name in self._biases or name not in self._tensors:
            return name in self
        if name not in self._replaced or self.shape(name) != self._tensors.shape(name):
            return name in self._replaced
        return not np.array_equal(self._base(name, self.shape(name), ()), whole(self._tensors, name))

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        if name in self._biases:
            values = self._base(name, self.shape(name), ()).astype(np.float32) + self._biases[name]
            return self._rounded(name, values).reshape(view)[index]
        if name not in self.deltas:
            return self._base(name, view, index)
        return read_view(self.shape(name), view, index, partial(self._merged, name))

    def _base(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        if name in self._replaced:
            return self._rounded(name, self._replaced[name].reshape(view)[index])
        return self._tensors.read(name, view, (*index, *(slice(None) for _ in view[len(index) :])))

    def _merged(self, name: str, rows: slice, columns: slice) -> np.ndarray:
        """The part of a matrix at `rows` and `columns` of what is stored."""
        made = empty((rows.stop - rows.start, columns.stop - columns.start), self._type(name))
        magnitude = self.deltas[name].magnitude
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = None if magnitude is None else magnitude / self._lengths(name)
        for part in _blocks(rows):
            values = self._summed(name, part, columns)
            if scales is not None:
                values *= scales[columns] if self._in_out(name) else scales[part, None]
            made[part.start - rows.start : part.stop - rows.start] = self._rounded(name, values)
        return made

    def _summed(self, name: str, rows: slice, columns: slice) -> np.ndarray:
        """f32, as `_merged` without magnitudes. May have numbers that are not finite, which `_rounded` refuses."""
        delta, in_out = self.deltas[name], self._in_out(name)
        outputs, inputs = (columns, rows) if in_out else (rows, columns)
        summed = self._base(name, self.shape(name), (rows, columns)).astype(np.float32)
        with np.errstate(all="ignore"):
            change = delta.b[outputs] @ delta.a[:, inputs]
            change *= np.float32(delta.scale)
            summed += change.T if in_out else change
        return summed

    def _lengths_of_outputs(self, name: str) -> np.ndarray:
        """f32 [out]: the length of each output's weights with the change."""
        (outputs, inputs), in_out = self.deltas[name].shape, self._in_out(name)
        lengths = np.empty(outputs, np.float32)
        for part in _blocks(slice(0, outputs)):
            at = (slice(0, inputs), part) if in_out else (part, slice(0, inputs))
            lengths[part] = np.linalg.norm(self._summed(name, *at), axis=0 if in_out else 1)
        return lengths

    def _rounded(self, name: str, values: np.ndarray) -> np.ndarray:
        dtype = self._type(name)
        if not max(values.max(), -values.min()) <= float(ml_dtypes.finfo(dtype).max):
            problem = f"makes a number of {name!r} that {dtype} cannot hold"
            raise CheckpointError(f"{self.adapter.directory}: the adapter {problem}")
        return values.astype(dtype, copy=False)

    def _type(self, name: str) -> np.dtype[Any]:
        return np.dtype(getattr(ml_dtypes, self.dtype(name), self.dtype(name)))

    def _replace(self, name: str, values: np.ndarray) -> None:
        if name in self._replaced:
            raise CheckpointError(f"{self.adapter.directory}: the adapter has tensor {name!r} twice")
        self._replaced[name] = values

    def _place(self, delta: Delta) -> None:
        weight = matrix_of(delta.name, self, self._renames)
        if weight is None:
            raise CheckpointError(f"{self.adapter.directory}: changes {delta.name!r}, the model has no such module")
        if weight in self.deltas:
            raise self._error(delta, f"changes {weight!r}, as {self.deltas[weight].name!r} does")
        if self.quantized(weight) is not None:
            raise self._error(delta, "cannot be merged with weights that are quantised; name the base in floats")
        self.deltas[weight] = delta
        shape = self.shape(weight)[:: -1 if self._in_out(weight) else 1]
        if shape != delta.shape:
            raise self._error(delta, f"changes [out, in] {list(delta.shape)}, the model has {list(shape)}")
        if delta.bias is not None:
            bias = weight.removesuffix("weight") + "bias"
            if bias not in self:
                raise self._error(delta, "has a bias (lora_bias), the model's module has none")
            self._biases[bias] = delta.scale * delta.bias

    def _in_out(self, name: str) -> bool:
        """Whether a matrix that is changed is stored [in, out], as every embedding is."""
        return self.deltas[name].embedding or (self._transposed and re.search(OF_LAYER, name) is not None)

    def _error(self, delta: Delta, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.adapter.directory}: the adapter's module {delta.name!r} {problem}")


def _blocks(rows: slice) -> Iterator[slice]:
    return (slice(start, min(start + ROWS, rows.stop)) for start in range(rows.start, rows.stop, ROWS))
