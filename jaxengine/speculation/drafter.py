"""What is offered as a draft for one request, and how likely that is right."""

from collections.abc import Iterable
from itertools import accumulate, takewhile
from operator import mul
from typing import NamedTuple, Protocol

from jaxengine.speculation.acceptance import Rates

LEAST = 0.05  # a guess that is less likely right is not worth its place in a step


class Proposal(NamedTuple):
    """The tokens that something learnt guesses behind those that are known, and how likely it finds each of them."""

    ids: list[int]
    chances: list[float]


class Drafter(Protocol):
    """Drafts for one request, to whose tokens the engine appends."""

    def offer(self, proposal: Proposal) -> None:
        """What something learnt guesses behind the tokens that there are now; ignored by who has no use for it."""
        ...

    def read(self) -> None:
        """Read the tokens that were appended, and learn whether they were what a draft would have been.

        So the rates are right too while no step verifies anything.
        """
        ...

    def chances(self, count: int) -> list[float]:
        """For each of the next `count` tokens of the draft, how likely it and those before it are right. The list ends
        where that is below `LEAST`.
        """
        ...

    def draft(self, count: int) -> list[int]:
        """The next `count` tokens."""
        ...


def worthwhile(rates: Iterable[float]) -> list[float]:
    """The `Drafter.chances` of guesses each of which is right at such a rate if those before it are."""
    return list(takewhile(lambda chance: chance >= LEAST, accumulate(rates, mul)))


def behind_match(rates: Rates, length: int, longest: int, count: int) -> list[float]:
    """The `Drafter.chances` of `count` guesses behind a match of `length` tokens: each that is right makes it longer,
    up to `longest`.
    """
    return worthwhile(rates.rate(min(each, longest)) for each in range(length, length + count))
