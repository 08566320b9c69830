"""Which tensor of a checkpoint is the matrix of a module that an adapter names."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from convert.mapping.renamed_tensors import renamed

# Matrices that transformers calls otherwise than the checkpoints it reads.
OTHER_NAMES = ((r"\.mlp\.(gate|router)\.weight$", ".block_sparse_moe.gate.weight"),)


class Names(Iterable[str], Protocol):
    def __contains__(self, name: object, /) -> bool: ...


def matrix_of(module: str, names: Names, renames: Sequence[tuple[str, str]]) -> str | None:
    """The one of `names` that module `module` has as its matrix; None where there is none, or not one alone.

    Args:
        renames: from names that modules have elsewhere to those of `names`.
    """
    weight = f"{module}.weight"
    other = renamed(weight, tuple(renames))
    if found := next(filter(names.__contains__, (weight, other, renamed(weight, OTHER_NAMES))), None):
        return found
    ends = [name for name in names if name.endswith(f".{other}")]
    return ends[0] if len(ends) == 1 else None
