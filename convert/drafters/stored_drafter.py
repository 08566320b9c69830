"""A drafter's parameters out of the tensors of its files, by recipes as a model's are."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.tensors import Index, Tensors
from convert.mapping.composition import assemble, check, ranges
from convert.mapping.part import Recipe
from jaxengine.architecture.drafter import DrafterSpec
from jaxengine.architecture.model import ModelSpec

MOST = 63  # guesses of a drafter, or blocks of one guess: a file may say anything


class StoredDrafter:
    """A `DrafterSource` over the tensors of a directory.

    Args:
        ignore: patterns of the names of other tensors that may be there.
        arrays: parameters that were read already.

    Raises:
        CheckpointError: the directory does not hold exactly the tensors of `recipes`, in their shapes.
    """

    def __init__(
        self,
        spec: DrafterSpec,
        tensors: Tensors,
        recipes: Mapping[str, Recipe],
        directory: Path,
        ignore: Iterable[str] = (),
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.spec = spec
        self._tensors = tensors
        self._recipes = recipes
        self._arrays = arrays or {}
        self._parameters = spec.parameters()
        check(tensors, recipes, tuple(ignore), str(directory))

    def read(self, name: str, index: Index) -> np.ndarray:
        if name in self._arrays:
            return self._arrays[name][index]
        return assemble(self._recipes[name], ranges(index, self._parameters[name].shape), self._tensors.read)


def count(config: Config, key: str, default: int | None = None) -> int:
    """A number of things that a drafter has. Raises CheckpointError where there are none, or too many."""
    found = config.integer(key, default)
    if found > MOST:
        raise config.error(key, f"must be at most {MOST}")
    return found


def check_fits(where: str, model: ModelSpec, hidden_size: int, vocab_size: int) -> None:
    """Raises CheckpointError unless a drafter for states and a vocabulary of these sizes can draft for `model`."""
    if model.embedding_width != model.hidden_size:
        sizes = f"{model.embedding_width} numbers, made of the {model.hidden_size} of a hidden state"
        raise CheckpointError(f"{where}: no drafter can be used with this model: its head reads {sizes}")
    if hidden_size != model.hidden_size:
        raise CheckpointError(
            f"{where}: the drafter reads hidden states of {hidden_size} numbers, the model's have {model.hidden_size}"
        )
    if vocab_size != model.vocab_size:
        raise CheckpointError(f"{where}: the drafter has a vocabulary of {vocab_size}, the model of {model.vocab_size}")
