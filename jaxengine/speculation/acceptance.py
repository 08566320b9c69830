"""How likely the next token of a draft is right, learnt from every token of a request for which there was a draft.

Whether a text goes on as it did before depends on how long it has done so. Of 60 answers of SmolLM2, half of them to
prompts that invite copying, the token behind a match of 2 or 3 was right in 0.56 of all cases, behind 8 to 15 in 0.88,
behind 32 or more in 0.99. Whether a learnt drafter is right depends on how likely it finds its guess itself, though it
may be too sure. So guesses are divided into classes by such evidence, and each class has a rate of its own.
"""

from bisect import bisect_right
from collections.abc import Sequence as Items
from typing import NamedTuple

TYPICAL_WEIGHT = 8.0  # as many trials the rates before anything is known count
OTHERS_WEIGHT = 4.0  # and as many the rates of other requests
MEMORY = 0.95  # what of a count is left after one more trial: the last 20 count


class Evidence(NamedTuple):
    """What tells guesses that are likely right from others: a number, and the `bounds` that divide it into classes.

    typical: the rate of each class before anything is known. A text that is new repeats less than the figures above.
    """

    bounds: tuple[float, ...]
    typical: tuple[float, ...]


LENGTH = Evidence((1, 2, 4, 8, 16, 32), (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.9))  # of a match, in tokens
CHANCE = Evidence((0.1, 0.2, 0.35, 0.5, 0.7, 0.85), (0.05, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85))  # as a drafter finds
FORCED = Evidence((), (0.85,))  # of what a grammar forces, in the tokenizer's own tokens


class Rates:
    """How often guesses were right, by class; the older a trial, the less it counts.

    Args:
        others: the rates of all requests, which learn too and count where little is known; None for those themselves.
    """

    def __init__(self, evidence: Evidence, others: "Rates | None" = None) -> None:
        self.evidence = evidence
        self.others = others
        self.hits = [0.0] * len(evidence.typical)
        self.trials = [0.0] * len(evidence.typical)
        self.rates: list[float] = list(others.rates if others else evidence.typical)

    def learn(self, found: float, hit: bool) -> None:
        """A guess with such evidence was right, or was not."""
        kind = bisect_right(self.evidence.bounds, found)
        prior: Items[float] = self.evidence.typical
        weight = TYPICAL_WEIGHT
        if self.others is not None:
            self.others.learn(found, hit)
            prior, weight = self.others.rates, OTHERS_WEIGHT
        self.hits[kind] = self.hits[kind] * MEMORY + hit
        self.trials[kind] = self.trials[kind] * MEMORY + 1
        self.rates[kind] = (self.hits[kind] + weight * prior[kind]) / (self.trials[kind] + weight)

    def rate(self, found: float) -> float:
        """The probability that a guess with such evidence is right."""
        return self.rates[bisect_right(self.evidence.bounds, found)]
