"""What a recipe is made of: which stored rows fill which box of a parameter, see `recipes`."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Part:
    """One box of a parameter, from one tensor.

    `rows`, shaped as the box's output axes, are the stored rows that fill it; None is all elements in order. `columns`,
    shaped as its input axes, are where each input lies in a stored row; None is in order.
    """

    tensor: str
    stored: tuple[int, ...]  # shape in the checkpoint
    start: tuple[int, ...]  # of the box in the parameter
    shape: tuple[int, ...]  # of the box
    inputs: int = 0  # how many trailing axes are one stored row's elements
    rows: np.ndarray | None = None
    transposed: bool = False
    order: tuple[int, ...] = ()  # the box's axes in the order in which they are stored; () = as in the box
    columns: np.ndarray | None = None

    @property
    def input_major(self) -> bool:
        """Whether the inputs of a matrix are not the last axis that is stored."""
        return self.transposed or self.order[-1:] not in ((), (len(self.shape) - 1,))


@dataclass(frozen=True)
class Recipe:
    parts: tuple[Part, ...]
    unit_rows: bool = False  # each row is divided by its length
