"""How likely the next token of a draft is right, learnt from every token of a request for which there was a draft.

Whether a text goes on as it did before depends on how long it has done so: of SmolLM2's answers a match of 2 tokens
was right in a third of all cases, one of 16 in nine of ten. So each class of match lengths has a rate of its own.
"""

from dataclasses import dataclass, field

CLASSES = 7  # of match lengths: 0, 1, 2-3, 4-7, 8-15, 16-31 and above
TYPICAL = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.9)  # the rates before anything is known
TYPICAL_WEIGHT = 8.0  # as many trials these count
OTHERS_WEIGHT = 4.0  # and as many the rates of other requests
MEMORY = 0.95  # what of a count is left after one more trial: the last 20 count


def class_of(length: int) -> int:
    return min(length.bit_length(), CLASSES - 1)


@dataclass
class Rates:
    """Hits and trials by class of match length, the older the less they count.

    parent: rates that count where little is known; None for those of all requests.
    """

    parent: "Rates | None" = None
    hits: list[float] = field(default_factory=lambda: [0.0] * CLASSES)
    trials: list[float] = field(default_factory=lambda: [0.0] * CLASSES)

    def learn(self, length: int, hit: bool) -> None:
        """A draft behind a match of `length` tokens was right, or was not."""
        kind = class_of(length)
        self.hits[kind] = self.hits[kind] * MEMORY + hit
        self.trials[kind] = self.trials[kind] * MEMORY + 1
        if self.parent is not None:
            self.parent.learn(length, hit)

    def rate(self, length: int) -> float:
        """The probability that the token drafted behind a match of `length` is right."""
        kind = class_of(length)
        weight = TYPICAL_WEIGHT if self.parent is None else OTHERS_WEIGHT
        prior = TYPICAL[kind] if self.parent is None else self.parent.rate(length)
        return (self.hits[kind] + weight * prior) / (self.trials[kind] + weight)
