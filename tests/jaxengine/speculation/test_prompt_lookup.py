"""Drafts are what followed the text's last tokens where they stood before."""

import random

import pytest

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.prompt_lookup import PromptLookup


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


def test_a_draft_is_what_followed_and_a_period_goes_on() -> None:
    options = Speculation(7)
    assert PromptLookup([1, 2, 3, 4, 5, 1, 2], options).draft(3) == [3, 4, 5]
    assert PromptLookup([9, 1, 2, 3, 1, 2, 3, 1, 2], options).draft(7) == [3, 1, 2, 3, 1, 2, 3]
    assert PromptLookup([1, 2, 3], options).draft(3) == []
