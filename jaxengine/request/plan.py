"""What one step computes: the scheduler writes it, the runner and the engine read it."""

from dataclasses import dataclass, field

from jaxengine.request.sequence import Sequence


@dataclass(slots=True)
class Row:
    """Positions `start … start+count-1` of a sequence in a step; `samples` if the last one's logits are drawn from.

    With `of_encoder` they are positions of the encoder's input.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    of_encoder: bool = False

    @property
    def of_prompt(self) -> bool:
        """Whether it computes what the request was given, not what it has been told since."""
        sequence = self.sequence
        return self.of_encoder or (self.start < sequence.prompt_length and not sequence.encoder_input)

    @property
    def ids(self) -> list[int]:
        """Those of its tokens that the host knows."""
        tokens = self.sequence.encoder_input if self.of_encoder else self.sequence.tokens
        return tokens[self.start : self.start + self.count]


@dataclass
class Plan:
    """One step.

    rows: what the decoder computes.
    encoder_rows: what the encoder reads before that; each is a whole encoder input, as its tokens all see each other.
    admitted: the sequences that took a slot in this step.
    waiting_for_prefix: the sequences left waiting because a running one is computing a prefix that they can share.
    drain: the plan is empty because a sequence must be preempted; complete what is in flight, then plan again.
    """

    rows: list[Row] = field(default_factory=list)
    tokens: int = 0  # of the rows
    encoder_rows: list[Row] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    waiting_for_prefix: list[Sequence] = field(default_factory=list)
    drain: bool = False

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.tokens += row.count

    @property
    def encoder_tokens(self) -> int:
        return sum(row.count for row in self.encoder_rows)

    @property
    def decode_only(self) -> bool:
        return self.tokens == len(self.rows) and all(row.samples for row in self.rows)
