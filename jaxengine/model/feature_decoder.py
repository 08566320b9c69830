"""A decoder that keeps of each token what EAGLE's layers read of it, on the token's page, beside keys and values.

So a prefix that is shared has its features too, a draft that was wrong leaves none that is read, and nothing has to be
computed again for a request that joins the drafting late.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.drafter import DRAFTER, Eagle
from jaxengine.model.decoder import Decoder, Layers
from jaxengine.model.image_rows import Images
from jaxengine.model.linear import Linear
from jaxengine.model.norm import Norm
from jaxengine.ops import StepBatch
from jaxengine.ops.cache import as_floats, stored

Features = tuple[Array, ...]  # one array [1, pages, page_size, feature_size], or none where nothing reads them


class Fusion(nnx.Module):
    """The hidden states at EAGLE-3's taps, [T, model hidden] each → features [T, hidden]."""

    def __init__(self, spec: Eagle, parameters: dict[str, Any]) -> None:
        def get(name: str) -> Any:
            return parameters.get(f"{DRAFTER}{name}")

        names = {"": [], "joined": ["fusion_norm"], "each": [f"fusion_norm.{i}" for i in range(len(spec.taps))]}
        self.joined = spec.fusion_norms == "joined"
        self.norms = nnx.List(Norm.named(name, spec.spec.norm, get) for name in names[spec.fusion_norms])
        self.linear = Linear.named("fusion", get)

    def __call__(self, tapped: Sequence[Array]) -> Array:
        if self.norms and not self.joined:
            tapped = [norm(x) for norm, x in zip(self.norms, tapped, strict=True)]
        x = jnp.concatenate(tapped, axis=1)
        return self.linear(self.norms[0](x) if self.joined else x)


class FeatureDecoder(nnx.Module):
    """Like `Decoder`, but behind the caches of its layers there is one more array, of features."""

    def __init__(self, decoder: Decoder, spec: Eagle, parameters: dict[str, Any]) -> None:
        self.spec = decoder.spec
        self.decoder = decoder
        self.taps = spec.taps
        self.fusion = Fusion(spec, parameters) if spec.taps else None

    def __call__(
        self, ids: Array, layers: Layers, batches: Sequence[StepBatch], images: Images | None = None
    ) -> tuple[Array, Layers]:
        *own, kept = layers
        hidden, caches, tapped = self.decoder.tapped(ids, tuple(own), batches, self.taps, images)
        features = hidden if self.fusion is None else self.fusion(tapped)
        return hidden, (*caches, write(kept, features, batches[0]))


def write(kept: Array, features: Array, batch: StepBatch) -> Array:
    """`kept` [1, pages, page_size, feature_size] with those of each token, [T, feature_size], written to its page."""
    pages = kept.squeeze(0)  # named in the index, the one layer would take a GPU kernel more
    return pages.at[batch.page, batch.offset].set(stored(features, kept.dtype), mode="drop")[None]


def read(kept: Array, batch: StepBatch) -> Array:
    """Those of the tokens of `batch`, [T, feature_size]."""
    return as_floats(kept[0, batch.page, batch.offset])
