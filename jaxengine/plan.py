"""What one step computes: the scheduler writes it, the runner and the engine read it."""

from dataclasses import dataclass, field

from jaxengine.sequence import Sequence


@dataclass(slots=True)
class Row:
    """Positions `start … start+count-1` of a sequence in a step; `samples` if the last one's logits are drawn from.

    With `of_source` they are positions of the encoder's input.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    of_source: bool = False

    @property
    def ids(self) -> list[int]:
        """Those of its tokens that the host knows."""
        tokens = self.sequence.source if self.of_source else self.sequence.tokens
        return tokens[self.start : self.start + self.count]


@dataclass
class Plan:
    """One step. `admitted` are the sequences that took a slot in it; `drain` asks to complete what is in flight.

    `sources` are what the encoder reads before the rows run: each whole, as all of its tokens see each other.
    """

    rows: list[Row] = field(default_factory=list)
    sources: list[Row] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    drain: bool = False

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def source_tokens(self) -> int:
        return sum(row.count for row in self.sources)

    @property
    def decode_only(self) -> bool:
        return all(row.count == 1 and row.samples for row in self.rows)
