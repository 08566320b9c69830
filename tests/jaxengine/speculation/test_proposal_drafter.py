"""What something learnt proposed is offered as a draft, and each proposal is compared with the tokens that came."""

from jaxengine.speculation.acceptance import CHANCE, Rates
from jaxengine.speculation.drafter import Proposal
from jaxengine.speculation.proposal_drafter import ProposalDrafter

SURE, UNSURE = 0.9, 0.4


class Trials(Rates):
    """Notes what it is told, and believes drafters."""

    def __init__(self) -> None:
        super().__init__(CHANCE)
        self.told: list[tuple[float, bool]] = []

    def learn(self, found: float, hit: bool) -> None:
        self.told.append((found, hit))

    def rate(self, found: float) -> float:
        return found


def drafter_of(tokens: list[int]) -> tuple[ProposalDrafter, list[tuple[float, bool]]]:
    drafter, trials = ProposalDrafter(tokens, Rates(CHANCE)), Trials()
    drafter.rates = trials
    return drafter, trials.told


def test_the_newest_proposal_is_the_draft_as_long_as_nothing_follows_its_tokens() -> None:
    tokens = [1, 2]
    drafter, _ = drafter_of(tokens)
    assert drafter.draft(3) == [] and drafter.chances(3) == []
    drafter.offer(Proposal([7, 8, 9], [SURE, SURE, UNSURE]))
    assert drafter.draft(2) == [7, 8]
    assert drafter.chances(3) == [SURE, SURE * SURE, SURE * SURE * UNSURE]
    tokens.append(7)
    drafter.read()
    assert drafter.draft(3) == []


def test_a_guess_that_is_hardly_ever_right_ends_the_draft() -> None:
    drafter, _ = drafter_of([1])
    drafter.offer(Proposal([7, 8, 9], [0.3, 0.1, SURE]))
    assert drafter.chances(3) == [0.3]


def test_guesses_are_compared_up_to_the_first_wrong_one() -> None:
    tokens = [1]
    drafter, told = drafter_of(tokens)
    drafter.offer(Proposal([7, 8, 9], [SURE, UNSURE, SURE]))
    tokens += [7, 5, 9]
    drafter.read()
    assert told == [(SURE, True), (UNSURE, False)]


def test_older_proposals_are_compared_too() -> None:
    """So guesses far ahead are judged although no step verifies them."""
    tokens = [1]
    drafter, told = drafter_of(tokens)
    drafter.offer(Proposal([7, 8], [0.5, 0.6]))
    tokens.append(7)
    drafter.offer(Proposal([8, 3], [0.7, 0.8]))
    tokens.append(8)
    drafter.read()
    assert told == [(0.5, True), (0.6, True), (0.7, True)]
    tokens.append(4)
    drafter.read()
    assert told[3:] == [(0.8, False)] and not drafter.proposals


def test_what_guesses_of_a_class_were_worth_is_learnt() -> None:
    tokens = [1]
    others = Rates(CHANCE)
    drafter = ProposalDrafter(tokens, others)
    before = drafter.rates.rate(SURE)
    for _ in range(30):
        drafter.offer(Proposal([7], [SURE]))
        tokens.append(6)
    drafter.read()
    assert drafter.rates.rate(SURE) < 0.15 < before and others.rate(SURE) < 0.35
    assert drafter.rates.rate(UNSURE) == Rates(CHANCE).rate(UNSURE)
