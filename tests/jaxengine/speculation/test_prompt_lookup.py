"""Drafts are what followed the text's last tokens where they stood before."""

import random

import pytest

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.prompt_lookup import PART, PromptLookup


def last_place(tokens: list[int], length: int) -> int:
    """Where the last `length` tokens stood before most lately: the index behind them, 0 for nowhere."""
    gram = tokens[len(tokens) - length :]
    ends = [end for end in range(length, len(tokens)) if tokens[end - length : end] == gram]
    return max(ends, default=0) if len(gram) == length else 0


def matched(tokens: list[int], place: int, longest: int) -> int:
    """How many tokens in front of `place` are those at the text's end."""
    return next((i for i in range(min(place, longest)) if tokens[place - 1 - i] != tokens[-1 - i]), min(place, longest))


@pytest.mark.parametrize("shortest", [1, 2, 3, 5])
@pytest.mark.parametrize("begun", [0, 1, 4, 40])
def test_a_match_is_followed_while_it_goes_on_and_else_the_latest_is_taken(shortest: int, begun: int) -> None:
    chance, longest = random.Random(shortest), 8
    tokens = [chance.randrange(3) for _ in range(begun)]
    lookup = PromptLookup(tokens, Speculation(4, prompt_lookup_min=shortest, prompt_lookup_max=longest))
    place = last_place(tokens, shortest)
    for _ in range(300):
        assert lookup.next == place and lookup.length == (matched(tokens, place, longest) if place else 0)
        right = tokens[place] if place else None
        tokens.append(chance.randrange(3))
        went_on = lookup.follow()
        assert went_on == (tokens[-1] == right)
        place = place + 1 if went_on else last_place(tokens, shortest)


@pytest.mark.parametrize("shortest", [1, 2, 3])
@pytest.mark.parametrize("length", [PART - 1, PART, PART + 1, PART + 3, 3 * PART - 1, 3 * PART + 2])
def test_a_long_prompt_is_read_in_parts_and_then_known_whole(shortest: int, length: int) -> None:
    chance = random.Random(length)
    tokens = [chance.randrange(40) for _ in range(length)]
    lookup = PromptLookup(tokens, Speculation(4, prompt_lookup_min=shortest, prompt_lookup_max=shortest))
    before = lookup.read
    while not lookup.begun:
        assert lookup.draft(4) == []
        tokens.append(chance.randrange(40))  # one for each step that goes on meanwhile
        lookup.read_part()
        assert lookup.read - before <= PART
        before = lookup.read
    ends = {tuple(tokens[end - shortest : end]): end for end in range(shortest, len(tokens))}
    assert lookup.behind == ends and lookup.next == last_place(tokens, shortest)


def test_a_draft_is_what_followed_and_a_period_goes_on() -> None:
    options = Speculation(7)
    assert PromptLookup([1, 2, 3, 4, 5, 1, 2], options).draft(3) == [3, 4, 5]
    assert PromptLookup([9, 1, 2, 3, 1, 2, 3, 1, 2], options).draft(7) == [3, 1, 2, 3, 1, 2, 3]
    assert PromptLookup([1, 2, 3], options).draft(3) == []
