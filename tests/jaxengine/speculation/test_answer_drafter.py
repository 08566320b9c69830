"""An answer where the text's last tokens stood is followed while the text goes on like it."""

import random

from jaxengine.speculation.acceptance import LENGTH, Rates
from jaxengine.speculation.answer_drafter import AnswerDrafter
from jaxengine.speculation.recent_answers import AHEAD, RecentAnswers

ANSWER = [21, 22, 23, 24, 25, 26, 27, 28]


def drafter_of(tokens: list[int], *answers: list[int]) -> AnswerDrafter:
    recent = RecentAnswers(100, 8)
    for answer in answers:
        recent.add("scope", [], answer)
    return AnswerDrafter(tokens, "scope", recent, Rates(LENGTH))


def goes_on(drafter: AnswerDrafter, *tokens: int) -> list[int]:
    drafter.tokens += tokens
    drafter.read()
    return drafter.draft(3)


def test_what_followed_in_an_answer_is_drafted_until_the_text_goes_another_way() -> None:
    drafter = drafter_of([1, 21, 22, 23], ANSWER)
    assert drafter.draft(3) == [24, 25, 26] and drafter.length == 3
    assert goes_on(drafter, 24) == [25, 26, 27] and drafter.length == 4
    assert goes_on(drafter, 9) == drafter.chances(3) == []
    assert goes_on(drafter, 24, 25, 26) == [27, 28]
    assert goes_on(drafter, 27, 28) == []


def test_an_answer_that_comes_later_is_drafted_from_too() -> None:
    drafter = drafter_of([1, 21, 22, 23])
    assert drafter.draft(3) == []
    drafter.answers.add("scope", [], ANSWER)
    assert goes_on(drafter, 24) == [25, 26, 27]


def test_a_long_answer_is_followed_to_its_end() -> None:
    answer = [random.Random(0).randrange(10_000) for _ in range(3 * AHEAD)]
    drafter = drafter_of(answer[:3], answer)
    for number in range(3, len(answer)):
        assert drafter.draft(1) == answer[number : number + 1]
        goes_on(drafter, answer[number])


def test_it_follows_what_a_search_through_all_would_follow() -> None:
    """At every token, if several come at once too."""
    chance = random.Random(1)
    answers = [[chance.randrange(4) for _ in range(60)] for _ in range(5)]
    tokens = [chance.randrange(4) for _ in range(8)]
    drafter = drafter_of(tokens, *answers)
    expected = drafter.answers.find("scope", tokens)[0]
    for _ in range(200):
        for _ in range(chance.randrange(4)):
            token = expected[0] if expected and chance.random() < 0.8 else chance.randrange(4)
            tokens.append(token)
            goes_on_there = bool(expected) and expected[0] == token
            expected = expected[1:] if goes_on_there else []
            expected = expected or drafter.answers.find("scope", tokens)[0]
        drafter.read()
        assert drafter.draft(9) == expected[:9]


def test_chances_are_learnt_from_every_token() -> None:
    right = drafter_of(ANSWER[:3], ANSWER)
    goes_on(right, *ANSWER[3:7])
    wrong = drafter_of(ANSWER[:3], ANSWER)
    for _ in range(4):
        goes_on(wrong, 0, *ANSWER[:3])
    assert right.rates.rate(3) > Rates(LENGTH).rate(3) > wrong.rates.rate(3)
    assert right.chances(9) == [right.rates.rate(right.length)]  # no more is left of the answer
