"""Logits that requests want of their prompts in place of text: of which hidden states a step has them, and how the host
gets them.

Every step returns the hidden states of its samples, and a ragged one those of all its tokens. The host reads them, and
has one small program make logits of the wanted ones, whatever requests they are of, a block at a time. So no step
differs for it, there is one program in all and not one for each size of step, and the device holds a block of logits,
however many are wanted. What goes to the host and back is little beside what it is for: h numbers for V.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from jax import Array

from jaxengine.request.plan import Row


@dataclass
class PromptLogits:
    """Of a launched step.

    rows: with the hidden states of which logits are wanted, the numbers of these in `hidden`.
    hidden: [n, h], of all tokens of the step or of its samples.
    logits_of: hidden [n, h] → f32 [n, V]; waits for the device.
    """

    rows: list[tuple[Row, range]]
    hidden: Array
    logits_of: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(
        cls,
        rows: list[Row],
        hidden: Array,
        all_hidden: Array | None,
        logits_of: Callable[[np.ndarray], np.ndarray],
    ) -> Self | None:
        """What `rows` want, None if that is nothing, of a step that returns the `hidden` states of its samples, and of
        all its tokens if it is ragged. In one that is not, each row is a token with a sample.
        """
        if not any(_wanted(row) for row in rows if row.sequence.request.logits):  # 8 us for 256 rows that want none
            return None
        every = all_hidden is not None and any(row.sequence.request.logits == "all" for row in rows)
        behind = np.cumsum([row.count if every else row.samples for row in rows]).tolist()
        chosen = [(row, range(end - _wanted(row), end)) for row, end in zip(rows, behind, strict=True) if _wanted(row)]
        array = all_hidden if every and all_hidden is not None else hidden
        array.copy_to_host_async()
        return cls(chosen, array, logits_of)

    def read(self) -> list[tuple[Row, np.ndarray]]:
        """Each row with the logits that are wanted of it, f32 [positions, V]. Waits for the step."""
        wanted = np.concatenate([numbers for _, numbers in self.rows])
        logits = self.logits_of(np.asarray(self.hidden)[wanted])
        ends = np.cumsum([len(numbers) for _, numbers in self.rows])
        return [(row, part) for (row, _), part in zip(self.rows, np.split(logits, ends)[:-1], strict=True)]


def _wanted(row: Row) -> int:
    """Of how many of its last positions logits are wanted."""
    wanted = row.sequence.request.logits
    return row.count if wanted == "all" else row.samples * (wanted == "last")
