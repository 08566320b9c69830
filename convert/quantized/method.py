"""A method of quantisation: which tensors a quantised module has, and how they are one matrix.

Every file beside this one describes a method. Its checks name file, tensor, found and expected, and end before the
first weight is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from convert.errors import CheckpointError
from convert.formats.quantized_matrix import QuantizedMatrix
from convert.formats.tensors import Tensors, whole

FLOATS = ("float32", "bfloat16", "float16")
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


@dataclass(frozen=True)
class Module:
    """One module of a checkpoint, by its name in it: what it has is `name` and a suffix."""

    tensors: Tensors
    name: str

    def has(self, suffix: str) -> bool:
        return f"{self.name}{suffix}" in self.tensors

    def shape(self, suffix: str) -> tuple[int, ...]:
        return self.tensors.shape(self._present(suffix))

    def dtype(self, suffix: str) -> str:
        return self.tensors.dtype(self._present(suffix))

    def whole(self, suffix: str) -> np.ndarray:
        return whole(self.tensors, self._present(suffix))

    def read(self, suffix: str, *index: slice) -> np.ndarray:
        """A slice of a tensor in its own shape, see `viewed`."""
        return self.viewed(suffix, self.tensors.shape(f"{self.name}{suffix}"), *index)

    def viewed(self, suffix: str, view: tuple[int, ...], *index: slice) -> np.ndarray:
        """A slice of a tensor in the shape `view`. Raises CheckpointError where a float of 8 bits is not a number."""
        values = self.tensors.read(f"{self.name}{suffix}", view, index)
        if values.dtype == E4M3 and _any_nan(values):
            raise self.error(suffix, "has a value that is not a number")
        return values

    def expect(self, suffix: str, shape: Sequence[int], *dtypes: str) -> None:
        """Raise CheckpointError unless the tensor has this shape and one of these types."""
        if self.shape(suffix) != tuple(shape):
            raise self.error(suffix, f"has shape {list(self.shape(suffix))}, must have {list(shape)}")
        if self.dtype(suffix) not in dtypes:
            raise self.error(suffix, f"has type {self.dtype(suffix)}, must have {' or '.join(dtypes)}")

    def axes(self, suffix: str, count: int) -> tuple[int, ...]:
        """The shape of a tensor. Raises CheckpointError unless it has so many axes, none of them empty."""
        shape = self.shape(suffix)
        if len(shape) != count or 0 in shape:
            raise self.error(suffix, f"has shape {list(shape)}, must have {count} axes")
        return shape

    def integers(self, suffix: str, count: int) -> tuple[int, ...]:
        """A tensor of so many integers."""
        values = self.whole(suffix).reshape(-1)
        if len(values) != count or not np.issubdtype(values.dtype, np.integer):
            raise self.error(suffix, f"must be {count} integers, has {len(values)} of {values.dtype}")
        return tuple(map(int, values))

    def scales(self, suffix: str) -> np.ndarray:
        """All of a tensor of scales. Raises CheckpointError where one is not finite."""
        values = self.whole(suffix)
        if not np.isfinite(values.astype(np.float32)).all():
            raise self.error(suffix, "has a scale that is not finite")
        return values

    def error(self, suffix: str, problem: str) -> CheckpointError:
        name = f"{self.name}{suffix}"
        where = self.tensors.where(name) if name in self.tensors else "checkpoint"
        return CheckpointError(f"{where}: tensor {name!r} {problem}")

    def _present(self, suffix: str) -> str:
        name = f"{self.name}{suffix}"
        if name not in self.tensors:
            raise CheckpointError(f"checkpoint lacks tensor {name!r}")
        return name


@dataclass(frozen=True)
class Method:
    """
    name: as checkpoints and options call it.
    markers: suffixes of tensors of which every quantised module has one, and no other module has any.
    suffixes: of all the tensors that a quantised module may have in place of its weight.
    open: the matrix of a module. Raises CheckpointError.
    weight: the suffix of the weight that a quantised module stands for.
    """

    name: str
    markers: tuple[str, ...]
    suffixes: tuple[str, ...]
    open: Callable[[Module], QuantizedMatrix]
    weight: str = ".weight"


def _any_nan(values: np.ndarray) -> bool:
    """Of e4m3, where 0x7F and 0xFF are no numbers: the largest signed byte, and the largest unsigned one.

    Two such passes go through 14 GB/s, one that makes booleans through 1.8 (NumPy 2.4, one core of a Xeon).
    """
    octets = values.view(np.uint8)
    return octets.size > 0 and bool(octets.max() == 0xFF or octets.view(np.int8).max() == 0x7F)
