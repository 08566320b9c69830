"""How long steps take, by kind and size, measured while serving.

A step that only decodes counts if it was planned ahead: else it has also waited for the host, see `Speculator.note`.
"""

WEIGHT = 0.25  # of a new measurement
OUTLIER = 2.0  # times the estimate: so far a single measurement can be off
FORGOTTEN = 0.999  # of an estimate is left after each step of another size: what was slow once is tried again

Size = tuple[int, bool]  # tokens of a step, padding included, and whether it verifies drafts


class StepTimes:
    """Estimates in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[Size, float] = {}

    def note(self, size: Size, seconds: float) -> None:
        """A step of `size` took so long."""
        for other in self.seconds:
            if other != size:
                self.seconds[other] *= FORGOTTEN
        old = self.seconds.get(size, seconds)
        self.seconds[size] = old + WEIGHT * (min(max(seconds, old / OUTLIER), old * OUTLIER) - old)
