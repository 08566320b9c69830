"""Attention and a recurrence that read the same and whose outputs are added (Falcon-H1)."""

from typing import Any

from flax import nnx
from jax import Array

from jaxengine.architecture.model import Beside
from jaxengine.model.attention import Attention
from jaxengine.model.rounding import times
from jaxengine.ops import AttentionBias, RopeTables, StepBatch


class SideBySide(nnx.Module):
    """x [T, hidden] → [T, hidden], the layer's keys and values as one, and what is `kept` by the recurrence.

    `batch` is that of attention, and its `slots` that of the recurrence.
    """

    def __init__(self, scales: Beside, attention: Attention, recurrence: Any) -> None:
        self.scales = scales
        self.attention = attention
        self.recurrence = recurrence

    @property
    def alone_reads(self) -> None:
        """As of `Attention`: several products read the same."""
        return None

    def __call__(
        self,
        x: Array,
        paged: tuple[Array, Array],
        kept: tuple[Array, ...],
        rope_tables: RopeTables | None,
        bias: AttentionBias,
        batch: StepBatch,
    ) -> tuple[Array, tuple[Array, Array], tuple[Array, ...]]:
        assert batch.slots is not None
        scales = self.scales
        y, kept, _ = self.recurrence(times(x, scales.recurrence_in), kept, (), None, bias, batch.slots)
        attended, *written = self.attention(times(x, scales.attention_in), *paged, rope_tables, bias, batch)
        made = times(y, scales.recurrence_out) + times(attended, scales.attention_out)
        return made, (written[0], written[1]), kept
