"""What followed a text's last tokens in the latest answer that had them, of those that the request may see."""

import random
from itertools import takewhile

import pytest

from jaxengine.speculation.recent_answers import AHEAD, GRAM, RecentAnswers

Told = tuple[object, list[int], list[int]]  # scope, prompt, answer
LONGEST = 8


def matched(one: list[int], other: list[int]) -> int:
    """How many of their last tokens are equal."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return min(LONGEST, len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))))


def looked_up(told: list[Told], scope: object, text: list[int]) -> tuple[list[int], int]:
    """As `RecentAnswers.find`, by going through all of them."""
    for theirs, prompt, answer in reversed(told):
        known = [*prompt[-LONGEST:], *answer]
        for place in reversed(range(len(known) - len(answer), len(known))):
            length = matched(known[:place], text)
            if theirs == scope and length >= GRAM:
                return known[place:], length
    return [], 0


def some(chance: random.Random, most: int, ids: int = 3) -> list[int]:
    return [chance.randrange(ids) for _ in range(chance.randrange(most))]


def answers_of(chance: random.Random, count: int, scopes: int = 2, ids: int = 3) -> list[Told]:
    return [(chance.randrange(scopes), some(chance, 12, ids), some(chance, 40, ids)) for _ in range(count)]


def filled(told: list[Told], most: int = 1000, **sizes: int) -> RecentAnswers:
    made = RecentAnswers(most, LONGEST, **sizes)
    for each in told:
        made.add(*each)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_the_latest_place_in_an_answer_is_found_and_none_that_is_not_there(seed: int) -> None:
    chance, told = random.Random(seed), []
    answers, found = RecentAnswers(1000, LONGEST), 0
    for each in answers_of(chance, 12):
        answers.add(*each)
        told.append(each)
        for _ in range(60):
            scope, text = chance.randrange(2), some(chance, 12)
            expected = looked_up(told, scope, text)
            assert answers.find(scope, text) == expected
            found += bool(expected[0])
    assert found > 300


@pytest.mark.parametrize("seed", range(5))
def test_a_scope_is_told_the_same_whatever_others_were_answered(seed: int) -> None:
    """So neither what is drafted nor whether anything is tells of another's answers."""
    chance = random.Random(seed)
    told = answers_of(chance, 60, scopes=4, ids=4)
    all_of_them, alone = filled(told), filled([each for each in told if each[0] == 0])
    for _ in range(300):
        text = some(chance, 12, ids=4)
        assert all_of_them.find(0, text) == alone.find(0, text)


@pytest.mark.parametrize("size", [64, 100, 257, 1000])
@pytest.mark.parametrize("slots", [1, 7, 1 << 12])
def test_what_is_found_was_answered_in_the_scope_however_full_the_ring_is(size: int, slots: int) -> None:
    """And whichever grams share a slot. Each scope has tokens of its own behind those that all have."""
    chance = random.Random(size)
    answers, told, found = RecentAnswers(1000, LONGEST, size, slots), [], 0
    for number in range(1500):
        scope, asking = chance.randrange(3), chance.randrange(3)
        if number % 5 == 0:
            told.append((scope, some(chance, 5), [*some(chance, size // 8), *[10 + scope] * chance.randrange(3)]))
            answers.add(*told[-1])
        text = some(chance, 12)
        ahead, length = answers.find(asking, text)
        if ahead:
            found += 1
            stood = [*text[len(text) - length :], *ahead]
            assert length >= GRAM and all(token < 3 or token == 10 + asking for token in ahead)
            assert any(theirs == asking and contains([*prompt, *answer], stood) for theirs, prompt, answer in told)
    assert found > 3


def contains(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def test_memory_is_that_of_the_ring_whatever_comes() -> None:
    chance = random.Random(0)
    answers = RecentAnswers(1000, LONGEST, size=500, slots=64)
    arrays = [answers.ids, answers.numbers, answers.places]
    for each in (*answers_of(chance, 400), (0, [], list(range(9999)))):
        answers.add(*each)
        assert sum(each.length for each in answers.answers.values()) <= 500
    assert [answers.ids, answers.numbers, answers.places] == arrays  # the same, not just equal
    assert answers.find(0, [9990, 9991, 9992]) == (list(range(9993, 9999)), GRAM)  # the end of a long answer is kept


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_answers_are_recent_than_asked_for(most: int) -> None:
    answers = RecentAnswers(most, LONGEST)
    for number in range(9):
        answers.add("scope", [], [100 * number + i for i in range(8)])
    known = [number for number in range(9) if answers.find("scope", [100 * number + i for i in range(3)])[0]]
    assert known == list(range(9 - most, 9))


def test_an_answer_is_known_from_its_first_token_by_the_prompt_before_it() -> None:
    answers = filled([("scope", [7, 1, 2, 3], [4, 5])])
    assert answers.find("scope", [9, 1, 2, 3]) == ([4, 5], 3)
    assert answers.find("scope", [7, 1, 2]) == ([], 0)  # what a prompt holds is not drafted


def test_no_more_than_some_tokens_are_looked_at_together() -> None:
    answers = filled([("scope", [], list(range(1000)))])
    assert answers.find("scope", [5, 6, 7])[0] == list(range(8, 8 + AHEAD))


@pytest.mark.parametrize("longest", [1, 2])
def test_matches_may_be_shorter_than_a_gram_where_no_longer_ones_count(longest: int) -> None:
    answers = RecentAnswers(9, longest)
    answers.add("scope", [], [1, 2, 3, 4])
    assert answers.find("scope", [8, 9, 2, 3][-longest - 1 :]) == ([4], longest)
