"""Low-rank adapters, as data: how a matrix of the parameter table takes one, and what one adds to it.

    w[out, in] += sum over r of b[out, r] * a[part(out), r, in]        (LoRA, Hu et al. 2021, arXiv 2106.09685)

A checkpoint may hold one matrix of the table in several modules, each with an `a` of its own: q, k and v; gate and up.
Then the matrix's outputs are numbered in units along one axis, and a unit belongs to one module. What reads an
adapter's files is `AdapterReader`. Like the rest of this folder, this file imports no JAX and knows no file format.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Adaptable:
    """How one matrix of the parameter table takes an adapter.

    parts: for each unit of outputs, the number of the module that it is of; (0,) where all outputs are of one module.
    axis: the output axis that numbers the units; None where there is one.
    """

    parts: tuple[int, ...] = (0,)
    axis: int | None = None

    @property
    def modules(self) -> int:
        return max(self.parts) + 1


@dataclass(frozen=True)
class AdapterShapes:
    """The stacks of adapters.

    targets: the matrices that have one.
    slots: adapters that one step can mix.
    rank: the highest of an adapter.
    """

    targets: Mapping[str, Adaptable]
    slots: int
    rank: int
    dtype: str


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to one matrix, scaled. Where it changes only some of the modules, the others have zeros.

    a: f32 [modules, rank, in], the input axes as one.
    b: f32 [out…, rank], the output axes as the parameter table has them.
    """

    a: np.ndarray
    b: np.ndarray

    @property
    def rank(self) -> int:
        return self.b.shape[-1]


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter that was read and checked.

    name: as it was given to the reader.
    directory: where its files lie.
    digest: sha256 of what it adds: two adapters with one digest are the same.
    matrices: by the names of the parameter table; matrices that it does not change are not there.
    """

    name: str
    directory: str
    digest: bytes
    matrices: Mapping[str, LowRank]

    @property
    def rank(self) -> int:
        """The highest of any matrix."""
        return max(matrix.rank for matrix in self.matrices.values())


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """An adapter in host memory as one slot of the device's stacks takes it.

    digest: as that of its `AdapterWeights`.
    arrays: a [modules·rank, in…] and b [units, rank, out…] of each matrix that it changes, in the stacks' dtype.
    """

    digest: bytes
    arrays: Mapping[str, tuple[np.ndarray, np.ndarray]]


class AdapterReader(Protocol):
    """Reads the adapters of one model."""

    @property
    def targets(self) -> Mapping[str, Adaptable]:
        """Every matrix that an adapter may change."""
        ...

    def read(self, name: str) -> AdapterWeights:
        """The adapter `name`: a directory, or an id on the hub, with `@revision` or without.

        May be called from any thread. Raises `CheckpointError`-like ValueErrors that name file and tensor: it is
        missing (then a LookupError too), malformed, made for another model, or does what cannot be added while the
        model runs.
        """
        ...
