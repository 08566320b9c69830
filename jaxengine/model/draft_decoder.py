"""A draft model: a decoder and its head, which guess one token after the other."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.drafter import DRAFTER, DraftModel
from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.device import DeviceTraits
from jaxengine.model.decoder import Decoder, Layers
from jaxengine.model.drafter import Guesses, likeliest
from jaxengine.model.embedding import Head, without_padding
from jaxengine.ops import Ops, StepBatch


class DraftDecoder(nnx.Module):
    """All layers share one page table, and each has a place of its own in the caches.

    Args:
        tokens: of the model for which it drafts; no other id is guessed.
        parameters: by the names of `spec.parameters()`, as of `Decoder`.
    """

    def __init__(
        self, spec: DraftModel, tokens: int, parameters: dict[str, Any], device: DeviceTraits, ops: Ops
    ) -> None:
        own = {name.removeprefix(DRAFTER): each for name, each in parameters.items() if name.startswith(DRAFTER)}
        own.setdefault("head", own["embedding"])
        self.guesses = spec.guesses
        self.tokens = tokens
        self.device = device
        self.decoder = Decoder(spec.spec, own, device, ops, LayerGroups.undivided(spec.spec))
        self.head = Head(spec.spec, own.get)

    def __call__(self, ids: Array, features: Array | None, layers: Layers, batch: StepBatch) -> tuple[Array, Layers]:
        """Tokens `ids` [T] → hidden states [T, hidden], and the caches with them. It reads no features."""
        return self.decoder(ids, layers, [batch])

    def guess(self, hidden: Array) -> tuple[Guesses, Array]:
        """What comes next after hidden [n, hidden]: one guess each, [n]; and `hidden`, as of `EagleDecoder.guess`."""
        id, chance = likeliest(without_padding(self.head(hidden), self.tokens))
        return Guesses(id, jnp.where(jnp.isnan(chance), 0, chance)), hidden
