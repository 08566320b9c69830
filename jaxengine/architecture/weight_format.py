"""How a quantised matrix is stored: which arrays, of which types, and what they stand for.

    w[out, in] = (values[out, in] - zeros[out, group]) * scales[out, group]

With a table, values number its entries, and the entries count in their place. With an order, `in` counts the inputs
sorted by their groups, and place `in` is that of input `order[in]`.

A checkpoint that is quantised already and a matrix that the engine quantises while it loads are described alike. Like
the rest of `spec`, this file imports no JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Component = Literal["values", "scales", "zeros", "order", "words"]
CODES = 8  # in a word


@dataclass(frozen=True)
class WeightFormat:
    """One format.

    name: what options call it.
    values, scales: their dtypes.
    zeros: the dtype of the zero points; None where every value is a multiple of its scale.
    group: how many consecutive inputs of an output channel share a scale and a zero point; 0 for all of them.
    table: what each value stands for; empty where values are numbers themselves.
    bits: how many of a value say something. Of up to four, a device holds two values in a byte.
    ordered: whether the inputs of a group lie apart in the model (GPTQ's order of activation), so values lie sorted.
    """

    name: str
    values: str
    scales: str = "float32"
    zeros: str | None = None
    group: int = 0
    table: tuple[float, ...] = ()
    bits: int = 8
    ordered: bool = False

    @property
    def offset(self) -> int:
        """What is added to values of four bits so that none is negative."""
        return 8 if self.bits <= 4 and self.values == "int8" else 0

    @property
    def dtypes(self) -> dict[Component, str]:
        """The components that the format has, and their dtypes."""
        dtypes: dict[Component, str] = {"values": self.values, "scales": self.scales}
        if self.zeros is not None:
            dtypes["zeros"] = self.zeros
        return dtypes | {"order": "int32"} if self.ordered else dtypes

    @property
    def per_channel(self) -> bool:
        """Whether a product with the values can be scaled instead of the weight."""
        return self.group == 0 and self.zeros is None and not self.table


@dataclass(frozen=True)
class StoredWeight:
    """A matrix that a checkpoint holds quantised.

    read: the slice `index` of a component in the format's dtype, called from several threads at once. What shape a
        component has is `Parameter.component`'s to say.
    packed: whether values can be read as "words" too: u32 with the codes of eight consecutive inputs, the first in the
        lowest bits. A code is a value with the format's offset added. Inputs lie as the model has them, also where the
        format is ordered.
    """

    format: WeightFormat
    read: Callable[[Component, tuple[slice, ...]], np.ndarray]
    packed: bool = False
