"""A learnt drafter, as data: what stands beside a model and guesses its next tokens.

Heads read the hidden state from which the model's own head makes the next token, and perhaps that token too. A draft
model reads the text, and EAGLE's layers the text and a hidden state of each token, into a cache of their own. A
drafter's parameters are a table like the model's, each name behind `DRAFTER`. No JAX here.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, Self

import numpy as np

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, ParameterSource, parameter_table

DRAFTER = "drafter."  # in front of the names of its parameters
MOST_GUESSES = 63  # of what could go on for ever


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

    @property
    def usual(self) -> int:
        """Guesses where nobody says how many."""
        return self.guesses

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

    @property
    def usual(self) -> int:
        """Guesses where nobody says how many."""
        return self.guesses

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
                table[f"{i}.embedding"] = Parameter((self.vocab_size, inner), ("vocab", None), 1)
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
    usual: ClassVar = None
    behind: ClassVar = 0  # how far behind its position the token stands that is read there

    @property
    def fresh(self) -> int:
        """Tokens of a row that it reads in the call that guesses: what it guessed was right and is read, but for the
        last guess, and one token more came.
        """
        return 2

    def first(self, guesses: int) -> Self:
        """The same with fewer guesses."""
        return replace(self, guesses=guesses)

    def parameters(self) -> dict[str, Parameter]:
        """Those of the model."""
        return _named(parameter_table(self.spec))


@dataclass(frozen=True)
class Eagle:
    """Layers that go on from the model's own hidden states (EAGLE, Li et al. 2024, arXiv 2401.15077; EAGLE-3, Li et al.
    2025, arXiv 2503.01840). From the feature of a token and the token behind it they make a state; a head guesses from
    that, and the state is the feature for which the guess is the token behind.

    Without `taps` a feature is the hidden state that the model's head reads, and layers begin with
    fusion(embedding ‖ feature). With them it is fusion(hidden states in front of these layers of the model, side by
    side), and the first layer attends to norm(embedding) ‖ norm(feature). A `module` begins with
    fusion(norm(embedding) ‖ norm(feature)), and all its layers are like the model's.

    spec: the layers, and as `vocab_size` the ids that the head knows. Embeddings, features and states have its
        `hidden_size`.
    model_hidden_size, model_vocab_size: of the model.
    usual: guesses where nobody says how many; None where its files do not say.
    taps: the model's number of layers means behind the last one, in front of the final norm.
    own_embedding, own_head: it does not read those of the model.
    own_ids: the head knows a part of the model's ids, and `offsets` say which: id i of the head is i + offsets[i].
    bias: of the fusion.
    fusion_norms: in front of the fusion all that it reads is normalised as one, or each tap alone.
    norm_before_residual: the first layer adds to the normalised feature.
    norm_output: the state that is the next feature is the normalised one, which the head reads.
    """

    spec: ModelSpec
    model_hidden_size: int
    model_vocab_size: int
    guesses: int = MOST_GUESSES
    usual: int | None = None
    taps: tuple[int, ...] = ()
    own_embedding: bool = True
    own_head: bool = True
    own_ids: bool = False
    bias: bool = False
    fusion_norms: Literal["", "joined", "each"] = ""
    norm_before_residual: bool = False
    norm_output: bool = False
    module: bool = False
    behind: ClassVar = 1  # how far behind its position the token stands that is read there

    @property
    def method(self) -> str:
        if self.module:
            return "mtp"
        return "eagle3" if self.taps else "eagle"

    @property
    def feature_size(self) -> int:
        """Numbers that are kept of each token."""
        return self.spec.hidden_size if self.taps else self.model_hidden_size

    @property
    def fresh(self) -> int:
        """Tokens of a row that it reads in the call that guesses: its own states stand in for features while it
        guesses, and are read again as the model has them once a step has verified the guesses.
        """
        return self.guesses + 1

    def first(self, guesses: int) -> Self:
        """The same with fewer guesses."""
        return replace(self, guesses=guesses)

    def parameters(self) -> dict[str, Parameter]:
        """Those of `spec`, but for what is the model's. `layers.0.attention_norm` is of embeddings and
        `layers.0.feature_norm` of features; without taps the first layer has neither. A module has `embedding_norm` and
        `feature_norm` [hidden] for that. `fusion` [hidden, what it reads],
        `fusion_bias` [hidden]; `fusion_norm` [taps · model hidden] or `fusion_norm.{tap}` [model hidden]; `offsets`
        i32 [ids of the head].
        """
        hidden, first = self.spec.hidden_size, "layers.0."
        table = parameter_table(self.spec)
        table["embedding"] = replace(table["embedding"], shape=(self.model_vocab_size, hidden))
        reads = len(self.taps) * self.model_hidden_size if self.taps else 2 * hidden
        table["fusion"] = Parameter((hidden, reads), ("embed", None), 1)
        if self.bias:
            table["fusion_bias"] = Parameter((hidden,), ("embed",))
        if self.taps:
            qkv = table[f"{first}qkv"]
            table[f"{first}qkv"] = replace(qkv, shape=(*qkv.shape[:-1], 2 * hidden))
            table[f"{first}feature_norm"] = table[f"{first}attention_norm"]
        elif self.module:
            table["embedding_norm"] = table["feature_norm"] = table[f"{first}attention_norm"]
        else:
            del table[f"{first}attention_norm"]
        if self.fusion_norms == "joined":
            table["fusion_norm"] = Parameter((reads,), (None,))
        for i in range(len(self.taps) if self.fusion_norms == "each" else 0):
            table[f"fusion_norm.{i}"] = Parameter((self.model_hidden_size,), (None,))
        if self.own_ids:
            table["offsets"] = Parameter((self.spec.vocab_size,), (None,), dtype="int32")
        given = {"embedding": self.own_embedding, "head": self.own_head}
        return _named({name: each for name, each in table.items() if given.get(name, True)})


DrafterHeads = Medusa | MLPSpeculator  # they read a hidden state of the model's
DrafterLayers = DraftModel | Eagle  # they read the text, and have caches
DrafterSpec = DrafterHeads | DrafterLayers


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
