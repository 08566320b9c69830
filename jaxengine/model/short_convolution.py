"""A gated convolution over the last few tokens in the place of a layer's attention (LFM2).

It keeps in the sequence's slot the last inputs of the convolution, and `batch` names slots where that of attention
names pages.
"""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jax import Array

from jaxengine.model.convolution import Convolution
from jaxengine.model.linear import Linear
from jaxengine.ops import AttentionBias, RopeTables, StepBatch


class ShortConvolution(nnx.Module):
    """x [T, hidden] → [T, hidden], and what is `kept` as it is after each row's last token."""

    def __init__(self, get: Callable[[str], Any]) -> None:
        self.projection = Linear.named("short_in", get)
        self.conv = Convolution(get("short_conv"), get("short_conv_bias"), linear=True)
        self.out = Linear.named("short_out", get)

    @property
    def alone_reads(self) -> Linear:
        """As of `Attention`."""
        return self.projection

    def __call__(
        self,
        x: Array,
        kept: tuple[Array, ...],
        nothing: tuple[()],
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Array, tuple[Array, ...], tuple[()]]:
        (inputs,) = kept
        projected = self.projection(x, adapters=batch.adapters)  # [T, 3, channels]
        convolved, inputs = self.conv(projected[:, 0] * projected[:, 2], inputs, batch)
        return self.out(projected[:, 1] * convolved, adapters=batch.adapters), (inputs,), nothing
