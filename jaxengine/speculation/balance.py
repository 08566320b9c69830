"""What speculation has won and lost. It pauses when it has lost too much, so no text can cost an engine much.

The rates of drafts are estimates that a text can fool. In a simulation with SmolLM2's step times on a CPU, texts whose
matches go on for exactly one token took 13 % longer without this, and take 2 % longer with it.

A draft model reads a whole prompt before it can win anything. So what that takes is lent: half of what is won from then
on pays it back. In the long run nothing is free, but a prompt can take many steps' time without ending speculation for
those who have read theirs.
"""

SHARE = 0.02  # of the steps may be lost in the long run
MOST = 8.0  # steps won before that may be lost again
FIRST = 4.0  # steps that may be lost at the start, when the times of steps that verify are not known yet
SLOWEST = 4.0  # times the usual: what took longer was disturbed
MOST_LENT = 100.0  # steps
MOST_LENT_AT_ONCE = 50.0  # likewise disturbed


class Balance:
    """In steps that only decode and were planned ahead."""

    def __init__(self) -> None:
        self.steps = FIRST
        self.lent = 0.0

    @property
    def allows(self) -> bool:
        """Whether there is anything left to lose."""
        return self.steps > 0 and self.lent < MOST_LENT

    def note(self, answered: float, took: float, lent: float = 0.0) -> None:
        """A step gave `answered` tokens a row and took as long as `took` steps that only decode, `lent` left out."""
        gain = SHARE + answered - min(took, SLOWEST)
        self.lent += min(lent, MOST_LENT_AT_ONCE)
        paid = min(self.lent, max(0.0, gain / 2, self.steps + gain - MOST))
        self.lent -= paid
        self.steps = min(self.steps + gain - paid, MOST)
