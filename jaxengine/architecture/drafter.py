"""A learnt drafter, as data: what stands beside a model and guesses its next tokens.

Heads read the hidden state from which the model's own head makes the next token, and perhaps that token too. A draft
model reads the text. A drafter's parameters are a table like the model's, each name behind `DRAFTER`. No JAX here.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, ParameterSource, parameter_table

DRAFTER = "drafter."  # in front of the names of its parameters
MOST_GUESSES = 63  # of a draft model, which could go on for ever


@dataclass(frozen=True)
class Medusa:
    """Heads side by side (Cai et al. 2024, arXiv 2401.10774). Head 0 guesses the token behind the next one, head h the
    one h tokens further. Each is `layers` blocks x + silu(block(x)) and a head over the vocabulary.

    guesses: how many heads.
    bias: whether blocks have one.
    own_heads: each has a matrix of its own over the vocabulary; else they share the model's head.
    """

    guesses: int
    layers: int
    hidden_size: int
    vocab_size: int
    bias: bool = True
    own_heads: bool = True
    method: ClassVar = "medusa"

    def first(self, guesses: int) -> Self:
        """The same with fewer guesses."""
        return replace(self, guesses=guesses)

    def parameters(self) -> dict[str, Parameter]:
        """`blocks` [guesses, hidden, hidden] and `blocks_bias` [guesses, hidden] are the first of each head, which read
        the same; then `{h}.blocks.{l}` [hidden, hidden], `{h}.blocks.{l}_bias` [hidden] and `{h}.head` [vocab, hidden].
        """
        hidden, table = self.hidden_size, {}
        if self.layers:
            table["blocks"] = Parameter((self.guesses, hidden, hidden), (None, None, "embed"), 1)
            table["blocks_bias"] = Parameter((self.guesses, hidden), (None, None))
        for head in range(self.guesses):
            for layer in range(1, self.layers):
                table[f"{head}.blocks.{layer}"] = Parameter((hidden, hidden), (None, "embed"), 1)
                table[f"{head}.blocks.{layer}_bias"] = Parameter((hidden,), (None,))
            if self.own_heads:
                table[f"{head}.head"] = Parameter((self.vocab_size, hidden), ("vocab", "embed"), 1)
        if not self.bias:
            table = {name: each for name, each in table.items() if not name.endswith("_bias")}
        return _named(table)


@dataclass(frozen=True)
class MLPSpeculator:
    """Guesses one after the other, each from a state and the token before (Wertheimer et al. 2024, arXiv 2404.19124):
    state = gelu(norm(project(state) · a + embedding(token) · b)), and the guess is the likeliest of head(state).

    With n guesses in training, a = 0.5^(0.5/n) and b = √((1 - a²) · inner_size / 2).

    tied: all guesses share one embedding, norm and head, and all but the first one projection.
    scale_input: the model's hidden state is normalised and divided by √2 first.
    trained: guesses in training, where some are left out; 0 = none is.
    """

    guesses: int
    inner_size: int
    hidden_size: int
    vocab_size: int
    tied: bool = False
    scale_input: bool = False
    trained: int = 0
    method: ClassVar = "mlp_speculator"

    def first(self, guesses: int) -> Self:
        """The same with fewer guesses."""
        return replace(self, guesses=guesses, trained=self.trained or self.guesses)

    @property
    def state_weight(self) -> float:
        """a"""
        return float(0.5 ** (0.5 / (self.trained or self.guesses)))

    @property
    def embedding_weight(self) -> float:
        """b"""
        return math.sqrt((1 - self.state_weight**2) * self.inner_size / 2)

    def parameters(self) -> dict[str, Parameter]:
        """`{i}.embedding` and `{i}.head` [vocab, inner], `{i}.project` [inner, hidden or inner], `{i}.norm` and
        `{i}.norm_bias` [inner]. What is shared has the first number that uses it.
        """
        inner, table = self.inner_size, {}
        for i in range(self.guesses):
            if i < (2 if self.tied else self.guesses):
                inputs = inner if i else self.hidden_size
                table[f"{i}.project"] = Parameter((inner, inputs), (None, "embed"), 1)
            if i == 0 or not self.tied:
                table[f"{i}.embedding"] = Parameter((self.vocab_size, inner), ("vocab", None), 1, by_row=True)
                table[f"{i}.norm"] = table[f"{i}.norm_bias"] = Parameter((inner,), (None,))
                table[f"{i}.head"] = Parameter((self.vocab_size, inner), ("vocab", "embed"), 1)
        return _named(table)


@dataclass(frozen=True)
class DraftModel:
    """A model of its own with the same tokens, small enough to be asked for each guess (Leviathan et al. 2023, arXiv
    2211.17192). It keeps keys and values of its own, see `jaxengine/executor/draft_runner.py`.
    """

    spec: ModelSpec
    guesses: int = MOST_GUESSES
    method: ClassVar = "draft_model"

    def first(self, guesses: int) -> Self:
        """The same with fewer guesses."""
        return replace(self, guesses=guesses)

    def parameters(self) -> dict[str, Parameter]:
        """Those of the model."""
        return _named(parameter_table(self.spec))


DrafterHeads = Medusa | MLPSpeculator  # they read a hidden state of the model's
DrafterSpec = DrafterHeads | DraftModel


class DrafterSource(Protocol):
    """Where a drafter's parameters come from."""

    @property
    def spec(self) -> DrafterSpec: ...

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of parameter `name`, `DRAFTER` included, in any floating dtype. Called from several threads
        at once. Raises `CheckpointError`-like ValueErrors that name file and tensor.
        """
        ...


@dataclass(frozen=True)
class DraftModelSource:
    """The `DrafterSource` of a draft model."""

    source: ParameterSource

    @property
    def spec(self) -> DraftModel:
        return DraftModel(self.source.spec)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self.source.read(name.removeprefix(DRAFTER), index)


def _named(table: dict[str, Parameter]) -> dict[str, Parameter]:
    return {f"{DRAFTER}{name}": parameter for name, parameter in table.items()}
