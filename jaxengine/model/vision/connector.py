"""The connector: the tower's features → rows of the text model.

Legend: T tokens of the tower, M rows, F the features' width, k² tokens that become one row.
"""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jax import Array

from jaxengine.architecture.vision import Vision
from jaxengine.model.linear import Linear
from jaxengine.model.mlp import ACTIVATIONS
from jaxengine.model.norm import Norm
from jaxengine.model.rounding import times


class Connector(nnx.Module):
    """features [T, F] and the tokens of each row [M, k²] → [M, hidden]; `get` is the tower's."""

    def __init__(self, vision: Vision, get: Callable[[str], Any]) -> None:
        def named(name: str) -> Linear:
            return Linear.named(f"connector.{name}", get)

        self.spec = spec = vision.connector
        self.norm = None if spec.norm is None else Norm.named("connector.norm", spec.norm, get)
        self.squeeze = named("squeeze") if spec.squeeze else None
        self.up = named("up") if spec.inner else None
        self.last = named("down" if spec.inner else "only") if spec.product else None

    def __call__(self, features: Array, merge: Array) -> Array:
        x = self._merged(features, merge)
        if self.norm is not None and self.spec.norm_merged:
            x = self.norm(x)
        if self.up is not None:
            x = self._activated(self.up(x))
        if self.last is None:
            return x
        return times(self.last(x), self.spec.scale)

    def _activated(self, inner: Array) -> Array:
        """[M, inner], of a gate and what it multiplies [M, 2, inner] where there is a gate."""
        activate = ACTIVATIONS[self.spec.activation]
        return activate(inner[:, 0]) * inner[:, 1] if self.spec.gated else activate(inner)

    def _merged(self, features: Array, merge: Array) -> Array:
        """[M, width of what is multiplied]."""
        if self.norm is not None and not self.spec.norm_merged:
            features = self.norm(features)
        squares = features[merge]  # [M, k², F]
        if self.squeeze is not None:
            return self.squeeze(squares)
        return squares.mean(1) if self.spec.pooled else squares.reshape(len(merge), -1)
