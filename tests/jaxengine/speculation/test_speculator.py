"""Texts that repeat themselves are served faster, and no text much slower, whatever it is made for."""

import random
from typing import Any

import pytest

from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request, Sequence
from jaxengine.speculation.balance import MOST_LENT
from jaxengine.speculation.drafter import Proposal
from jaxengine.speculation.speculator import Room
from tests.jaxengine.speculation.simulation import TIMES, LearntDrafter, Next, Server

TOKENS = 3000
VOCAB = 50_000
SOURCE = [random.Random(0).randrange(VOCAB) for _ in range(600)]


def text(copied: int, new: int, seed: int = 0) -> list[int]:
    """The source, and then `copied` tokens of it and `new` ones in turns."""
    chance, made = random.Random(seed), [*SOURCE]
    while len(made) < len(SOURCE) + TOKENS:
        begin = chance.randrange(len(SOURCE) - copied)
        made += SOURCE[begin : begin + copied]
        made += [chance.randrange(VOCAB) for _ in range(new)]
    return made


def one_of(ids: int) -> list[int]:
    chance = random.Random(ids)
    return [chance.randrange(ids) for _ in range(TOKENS + 600)]


def matches_that_go_on_for(tokens: int) -> list[int]:
    """One phrase again and again, with another token behind it each time."""
    chance, phrase = random.Random(0), list(range(2 + tokens))
    return [token for _ in range(TOKENS + 600) for token in (*phrase, chance.randrange(100, VOCAB))]


def told(known: list[int]) -> Next:
    return lambda sequence, draft: known[len(sequence.tokens)]


def speedup(known: list[int], rows: int = 1, *, keeps_states: bool = False) -> float:
    server = Server(keeps_states=keeps_states)
    server.serve([known[:600]] * rows, TOKENS, told(known))
    return server.speedup


@pytest.mark.parametrize(("copied", "new", "least"), [(20, 1, 2.5), (20, 20, 1.4), (8, 8, 1.2)])
def test_a_text_that_repeats_the_prompt_is_served_faster(copied: int, new: int, least: float) -> None:
    assert speedup(text(copied, new)) > least


@pytest.mark.parametrize(
    "known", [text(3, 1), text(3, 3), text(5, 10), text(4, 40)], ids=["3-1", "3-3", "5-10", "4-40"]
)
def test_a_text_of_short_repetitions_is_served_hardly_slower(known: list[int]) -> None:
    assert speedup(known) > 0.97


@pytest.mark.parametrize("tokens", range(5))
@pytest.mark.parametrize("rows", [1, 3])
def test_matches_that_break_off_at_once_cost_little(tokens: int, rows: int) -> None:
    assert speedup(matches_that_go_on_for(tokens), rows) > 0.97


@pytest.mark.parametrize("ids", [2, 3, 4, 8, 100])
def test_noise_of_few_ids_costs_little(ids: int) -> None:
    assert speedup(one_of(ids)) > 0.97


@pytest.mark.parametrize("rate", [0.2, 0.5, 1.0])
def test_a_text_that_goes_on_as_expected_until_it_is_drafted_costs_little(rate: float) -> None:
    """Nothing fools the estimates more: drafts are right at that rate while nobody verifies them, and else wrong."""
    server, chance = Server(), random.Random(0)

    def against(sequence: Sequence, draft: list[int]) -> int:
        expected = server.speculator.drafters[sequence].draft(1) if sequence in server.speculator.drafters else []
        if draft or not expected or chance.random() > rate:
            return chance.randrange(4)
        return expected[0]

    server.serve([[0, 1, 2, 3] * 10], TOKENS, against)
    assert server.speedup > 0.97


def test_a_text_that_changes_its_ways_is_served_faster_again() -> None:
    """Speculation that stopped while it lost starts anew where it wins."""
    server = Server()
    server.serve([matches_that_go_on_for(1)[:600]], TOKENS, told(matches_that_go_on_for(1)))
    lost, plain = server.seconds, server.plain_seconds
    server.serve([SOURCE], TOKENS, told(text(20, 1)))
    assert (server.plain_seconds - plain) / (server.seconds - lost) > 2


# --- where layers keep states -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("copied", "new", "least"), [(20, 1, 2.2), (20, 20, 1.3), (8, 8, 1.15)])
def test_a_text_that_repeats_is_served_faster_though_what_was_right_is_computed_again(
    copied: int, new: int, least: float
) -> None:
    assert speedup(text(copied, new), keeps_states=True) > least


@pytest.mark.parametrize(
    "known", [*map(matches_that_go_on_for, range(4)), text(3, 3), text(4, 40), one_of(2), one_of(8)]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_computed_again_costs_little(known: list[int], rows: int) -> None:
    assert speedup(known, rows, keeps_states=True) > 0.97


def test_nothing_is_proposed_for_a_step_that_has_no_room_for_it() -> None:
    server = learnt_drafter(1.0, claimed=1.0)
    server.serve([NEW[:600]], 100, told(NEW))
    speculator, drafter = server.speculator, server.drafter
    assert drafter is not None
    sequence = Sequence(Request(9, NEW[:600], SamplingParams(max_tokens=100, seed=0)), 9)
    for tokens, asked in ((max(TIMES) - 1, 1), (max(TIMES), 0)):
        before = drafter.asked
        (draft,) = speculator.choose([Room(sequence, 50)], tokens)
        assert (len(draft), drafter.asked - before) == (asked, asked)


# --- recent answers -----------------------------------------------------------------------------------------------


def answers_like_one_another(same: int, other: int, requests: int) -> list[list[int]]:
    """Texts of which none repeats itself, with so many tokens in turns that are those of all and that are its own."""
    own, begun = random.Random(0), list(range(same))
    common = [VOCAB + number for number in range(1000)]
    made = []
    for _ in range(requests):
        text = [own.randrange(VOCAB) for _ in range(600)]
        for place in range(0, len(common) - same, same):
            text += [*common[place : place + same], *(own.randrange(VOCAB) for _ in range(other))]
        made.append([*text, *begun])
    return made


def served_in_turn(known: list[list[int]], method: str) -> float:
    server = Server(method=method)
    for each in known:
        server.serve([each[:600]], len(each) - 601, told(each))
    return server.speedup


@pytest.mark.parametrize(("same", "other", "least"), [(40, 1, 2.0), (20, 5, 1.4), (20, 20, 1.1)])
def test_answers_that_are_like_others_are_served_faster(same: int, other: int, least: float) -> None:
    known = answers_like_one_another(same, other, requests=12)
    assert served_in_turn(known, "suffix") > least > 1.01 > served_in_turn(known, "ngram")


@pytest.mark.parametrize("same", [3, 4, 5])
def test_answers_that_are_hardly_like_others_are_served_hardly_slower(same: int) -> None:
    assert served_in_turn(answers_like_one_another(same, 12, requests=12), "suffix") > 0.97


@pytest.mark.parametrize(
    "known", [text(3, 3), one_of(2), one_of(8), matches_that_go_on_for(1)], ids=["3-3", "2", "8", "1"]
)
def test_texts_that_cost_n_grams_little_cost_suffixes_little(known: list[int]) -> None:
    server = Server(method="suffix")
    for _ in range(3):
        server.serve([known[:600]], TOKENS, told(known))
        known = [(token * 7) % VOCAB for token in known]  # the same with other tokens
    assert server.speedup > 0.97


# --- learnt drafters ----------------------------------------------------------------------------------------------

NEW = [random.Random(1).randrange(VOCAB) for _ in range(TOKENS + 700)]


def learnt_drafter(right: float, claimed: float, guesses: int = 3, **reading: Any) -> Server:
    """A server whose drafter guesses each token right at a rate of `right`, and finds it likely by `claimed`."""
    chance = random.Random(0)

    def guess(sequence: Sequence) -> Proposal:
        behind = NEW[len(sequence.tokens) :][:guesses]
        return Proposal([token if chance.random() < right else -1 for token in behind], [claimed] * guesses)

    return Server(guesses, LearntDrafter(guess, **reading))


def learnt(right: float, claimed: float, rows: int = 1) -> Server:
    """It has served a long answer to each of so many requests."""
    server = learnt_drafter(right, claimed)
    server.serve([NEW[:600]] * rows, TOKENS, told(NEW))
    return server


@pytest.mark.parametrize(("right", "least"), [(0.95, 1.9), (0.8, 1.4), (0.6, 1.1)])
def test_a_learnt_drafter_that_is_often_right_makes_answers_faster(right: float, least: float) -> None:
    """A step that verifies 4 tokens takes 1.33 times as long, and the drafter 0.3."""
    assert learnt(right, claimed=right).speedup > least


@pytest.mark.parametrize("right", [0.0, 0.1, 0.2, 0.3, 0.4])
@pytest.mark.parametrize("claimed", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_learnt_drafter_that_is_seldom_right_costs_little(right: float, claimed: float, rows: int) -> None:
    server = learnt(right, claimed, rows)
    assert server.speedup > 0.97
    assert server.drafter is not None and server.drafter.asked > 3


def reads_prompts(right: float, requests: int, tokens: int) -> Server:
    """Of one request after the other, each of so many tokens, a drafter reads the prompt in the time of 40 steps."""
    server = learnt_drafter(right, claimed=right, parts=8, reading=5.0)
    for _ in range(requests):
        server.serve([NEW[:600]], tokens, told(NEW))
    return server


def test_a_drafter_that_reads_long_prompts_is_waited_for() -> None:
    server = reads_prompts(0.9, requests=5, tokens=600)
    assert server.speedup > 1.3
    assert server.speculator.balance.lent < 1


def test_a_drafter_that_reads_long_prompts_for_nothing_reads_few() -> None:
    """It costs a part of 20,000 steps that is as small as any other drafter's, but for what was lent."""
    server = reads_prompts(0.0, requests=100, tokens=200)
    assert server.drafter is not None and 8 < server.drafter.read < 100
    assert server.seconds < server.plain_seconds * 1.03 + MOST_LENT


def test_a_learnt_drafter_is_asked_again_once_it_is_right() -> None:
    server = learnt(0.0, claimed=0.6)
    lost, plain = server.seconds, server.plain_seconds
    assert server.drafter is not None
    server.drafter.guess = lambda sequence: Proposal(NEW[len(sequence.tokens) :][:3], [0.6] * 3)
    server.serve([NEW[:600]], TOKENS, told(NEW))
    assert (server.plain_seconds - plain) / (server.seconds - lost) > 1.8
