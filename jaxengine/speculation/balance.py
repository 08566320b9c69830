"""What speculation has won and lost. It pauses when it has lost too much, so no text can cost an engine much.

The rates of drafts are estimates that a text can fool. In a simulation with SmolLM2's step times on a CPU, texts whose
matches go on for exactly one token took 13 % longer without this, and take 2 % longer with it.
"""

SHARE = 0.02  # of the steps may be lost in the long run
MOST = 8.0  # steps won before that may be lost again
FIRST = 4.0  # steps that may be lost at the start, when the times of steps that verify are not known yet
SLOWEST = 4.0  # times the usual: what took longer was disturbed


class Balance:
    """In steps that only decode and were planned ahead."""

    def __init__(self) -> None:
        self.steps = FIRST

    @property
    def allows(self) -> bool:
        """Whether there is anything left to lose."""
        return self.steps > 0

    def note(self, answered: float, took: float) -> None:
        """A step gave `answered` tokens a row and took as long as `took` steps that only decode."""
        self.steps = min(self.steps + SHARE + answered - min(took, SLOWEST), MOST)
