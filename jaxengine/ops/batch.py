"""The inputs of attention and of scans, beside queries, keys and values."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jaxengine.ops.adapters import AdapterTokens


class Wanted(NamedTuple):
    """The tokens of which the output of a ragged step's last layer is read. Of the others, which it has no other use
    for, it may be anything finite, if these are `only` ones.
    """

    only: Array  # bool []
    token: Array  # [N] i32; padding names any
    first: Array  # [R] i32, of each row; T if it has none


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepBatch:
    """T tokens in R rows, each row a contiguous run of one sequence's tokens. Padding tokens write to page 0.

    Attention is causal: a token sees the keys up to its own. With `noncausal_length` n it sees the first n keys of its
    sequence, wherever it stands. With `horizon` a causal token also sees the keys up to a later one, the end of its
    image: the first max(horizon, position + 1) keys. Of a row's tokens, a later one's may not be less. A window hides
    keys from such a token too (Gemma 3), unless `past_window`, which is static (PaliGemma 2). `cross` is the batch with
    which the same tokens read what their encoder wrote, and `slots` the one with which they read and write states. What
    a row leaves behind are the states in front of its guesses, which begin at `settled`. `ragged` is static: without it
    every row is exactly one token, token t being row t. `wanted` is of the last layer.
    """

    position: Array  # [T] i32, in the token's own sequence
    rope_length: Array  # [T] i32, length of the text that rotary frequencies are chosen for, see `model/rope.py`
    row: Array  # [T] i32, not decreasing; R for padding
    page: Array  # [T] i32, where the token's key and value go
    offset: Array  # [T] i32, in that page
    tables: Array  # [R, W] i32, the pages of each row's sequence in order
    tokens: Array  # [] i32, how many of the T tokens are real
    ragged: bool = dataclasses.field(metadata={"static": True})
    noncausal_length: Array | None = None  # [T] i32
    cross: "StepBatch | None" = None
    slots: "StepBatch | None" = None
    adapters: AdapterTokens | None = None  # None where no token has any
    rope_position: Array | None = None  # i32 [T], or [3, T] for ropes with axes: what rotates; None = position
    horizon: Array | None = None  # [T] i32, of prompts and pictures: the last visible key + 1; 0 = the token's own
    past_window: bool = dataclasses.field(default=False, metadata={"static": True})
    wanted: Wanted | None = None  # None = of all tokens
    settled: Array | None = None  # [R] i32, the token behind each row's last that is no guess; None = no row has any
    layer: ArrayLike = 0  # [] i32, which of the layers in the caches this is for, see `model/cache.py`
    part: ArrayLike | None = None  # [] i32, which part of a place that several layers share, see `ops/cache.py`

    @property
    def kv_length(self) -> Array:
        """[T] i32, how many keys of its sequence each token sees, counted from the first."""
        if self.noncausal_length is not None:
            return self.noncausal_length
        return self.position + 1 if self.horizon is None else jnp.maximum(self.position + 1, self.horizon)

    def of_layer(self, layer: int, part: int | None = None) -> "StepBatch":
        """The same for layer number `layer` of the caches, or for a part of it. Both are traced: layers that are alike
        are traced once.
        """
        cross = self.cross and self.cross.of_layer(layer)
        part_of = None if part is None else np.int32(part)
        return dataclasses.replace(self, layer=np.int32(layer), cross=cross, part=part_of)

    @property
    def unhidden(self) -> Array | None:
        """[T] i32, how many keys no window hides from each token; None = none."""
        return self.horizon if self.past_window else None


def unfolded(batch: StepBatch) -> StepBatch:
    """The same to compute with, but XLA does not see which layer it is for. On a CPU it compiles what is alike once for
    all layers, and each number on its own took 16 layers from 2.5 to 4.5 s (JAX 0.10.2).
    """
    return dataclasses.replace(batch, layer=jax.lax.optimization_barrier(jnp.asarray(batch.layer, jnp.int32)))


def layer_of(batch: StepBatch) -> Array:
    """i32 [1]: the number of the layer, as a kernel takes it."""
    return jnp.asarray(batch.layer, jnp.int32).reshape(1)


def row_starts(batch: StepBatch) -> Array:
    """i32 [R + 1]: each row's first token; the last is the first token of the padding."""
    rows = jnp.arange(batch.tables.shape[0] + 1, dtype=jnp.int32)
    if not batch.ragged:
        return rows
    return (batch.row[None, :] < rows[:, None]).sum(1, dtype=jnp.int32)


def settled_ends(batch: StepBatch, starts: Array) -> Array:
    """i32 [R]: the token behind each row's last whose states are kept. `starts` [R + 1] are the `row_starts`."""
    return starts[1:] if batch.settled is None else batch.settled


class ScanInputs(NamedTuple):
    """Inputs of a scan over T tokens and C channels of N states each; f32, except x."""

    x: Array  # [T, C], in the model's dtype
    dt: Array  # [T, C], positive
    b: Array  # [T, N]
    c: Array  # [T, N]
    a: Array  # [C, N], negative


class DeltaInputs(NamedTuple):
    """Inputs of the gated delta rule over T tokens, K key heads of dimension D and G value heads of each, of V; or of
    Mamba 2, whose C, B, inputs and time steps stand for queries, keys, values and rates.
    """

    queries: Array  # [T, K, D], in the model's dtype, of any length
    keys: Array  # [T, K, D], likewise
    values: Array  # [T, K, G, V], likewise
    decay: Array  # f32 [T, K, G], the logarithm of what states are multiplied by; not positive
    rate: Array  # f32 [T, K, G], 0 to 1, or a time step


class RopeTables(NamedTuple):
    """The rotation of each token's queries and keys: element pairs (i, i + dim/2) of their first dim elements."""

    cos: Array  # f32 [T, dim/2]
    sin: Array  # f32 [T, dim/2]


class AttentionBias(NamedTuple):
    """What a layer adds to the attention scores of each head; None where the model adds nothing."""

    slopes: Array | None = None  # f32 [K, G], of ALiBi
    sinks: Array | None = None  # f32 [K, G], one more logit that has no value
    relative: Array | None = None  # f32 [K, G, 2m+1], for distances -m … m; farther ones take the nearest entry
