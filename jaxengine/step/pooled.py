"""Hidden states that a step computes for embeddings: which rows want them, and what the host reads of them.

The hidden state of a row's sample, its last token's, is an output of every step. Sums over tokens take a launch more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jax import Array

from jaxengine.request.plan import Row

PooledRow = tuple[int, Row]  # a row that is pooled, and its number in the plan


@dataclass
class PooledHidden:
    """Of the step's pooled rows. `array` [n, h] has a row for each row of the step or for each of its samples."""

    rows: list[PooledRow]
    index: list[int]  # of each in `array`
    array: Array

    def read(self) -> Iterator[tuple[Row, np.ndarray]]:
        """Each row with what it adds to its embedding, f32 [h]. Waits for the step."""
        table = np.asarray(self.array)
        for (_, row), index in zip(self.rows, self.index, strict=True):
            yield row, table[index].astype(np.float32)


def pooled_rows(rows: list[Row]) -> list[PooledRow]:
    """Those that add to an embedding: all of a mean's, and of a last token's the row that has it."""
    wanted = ((number, row) for number, row in enumerate(rows) if row.sequence.pooling is not None)
    return [(number, row) for number, row in wanted if row.samples or row.sequence.pooling == "mean"]


def row_of_tokens(rows: list[Row], pooled: list[PooledRow], tokens: int) -> np.ndarray:
    """For each of a step's padded `tokens` the number of its row if that is `pooled`, else one that no row has."""
    chosen = {number for number, _ in pooled}
    numbers = [number if number in chosen else tokens for number in range(len(rows))]
    of_tokens = np.full(tokens, tokens, np.int32)
    counts = [row.count for row in rows]
    of_tokens[: sum(counts)] = np.repeat(np.array(numbers, np.int32), counts)
    return of_tokens
