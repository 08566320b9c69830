"""What one step computes: the scheduler writes it, the runner and the engine read it."""

from dataclasses import dataclass, field

from jaxengine.request.sequence import Sequence


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
    def of_prompt(self) -> bool:
        """Whether it computes what the request was given, not what it has been told since."""
        sequence = self.sequence
        return self.of_source or (self.start < sequence.prompt_length and not sequence.source)

    @property
    def ids(self) -> list[int]:
        """Those of its tokens that the host knows."""
        tokens = self.sequence.source if self.of_source else self.sequence.tokens
        return tokens[self.start : self.start + self.count]


@dataclass
class Plan:
    """One step. `admitted` are the sequences that took a slot in it, `followers` those that wait for pages which a
    running one computes: their prompts are being read, too. `drain` asks to complete what is in flight.

    `sources` are what the encoder reads before the rows run: each whole, as all of its tokens see each other.
    """

    rows: list[Row] = field(default_factory=list)
    tokens: int = 0  # of the rows
    sources: list[Row] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    followers: list[Sequence] = field(default_factory=list)
    drain: bool = False

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.tokens += row.count

    @property
    def source_tokens(self) -> int:
        return sum(row.count for row in self.sources)

    @property
    def decode_only(self) -> bool:
        return self.tokens == len(self.rows) and all(row.samples for row in self.rows)
