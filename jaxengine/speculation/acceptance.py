"""How likely the next token of a draft is right, learnt from every token of a request for which there was a draft.

Whether a text goes on as it did before depends on how long it has done so. Of 60 answers of SmolLM2, half of them to
prompts that invite copying, the token behind a match of 2 or 3 was right in 0.56 of all cases, behind 8 to 15 in 0.88,
behind 32 or more in 0.99. So each class of match lengths has a rate of its own. A text that is new repeats less, so the
rates before anything is known are lower.
"""

CLASSES = 7  # of match lengths: 0, 1, 2-3, 4-7, 8-15, 16-31 and above
TYPICAL = [0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.9]  # the rates before anything is known
TYPICAL_WEIGHT = 8.0  # as many trials these count
OTHERS_WEIGHT = 4.0  # and as many the rates of other requests
MEMORY = 0.95  # what of a count is left after one more trial: the last 20 count


def class_of(length: int) -> int:
    return min(length.bit_length(), CLASSES - 1)


class Rates:
    """How often drafts were right, by class of match length; the older a trial, the less it counts.

    Args:
        others: the rates of all requests, which learn too and count where little is known; None for those themselves.
    """

    def __init__(self, others: "Rates | None" = None) -> None:
        self.others = others
        self.hits = [0.0] * CLASSES
        self.trials = [0.0] * CLASSES
        self.rates: list[float] = list(others.rates if others else TYPICAL)

    def learn(self, length: int, hit: bool) -> None:
        """A draft behind a match of `length` tokens was right, or was not."""
        kind, prior, weight = class_of(length), TYPICAL, TYPICAL_WEIGHT
        if self.others is not None:
            self.others.learn(length, hit)
            prior, weight = self.others.rates, OTHERS_WEIGHT
        self.hits[kind] = self.hits[kind] * MEMORY + hit
        self.trials[kind] = self.trials[kind] * MEMORY + 1
        self.rates[kind] = (self.hits[kind] + weight * prior[kind]) / (self.trials[kind] + weight)

    def rate(self, length: int) -> float:
        """The probability that the token drafted behind a match of `length` is right."""
        return self.rates[class_of(length)]
