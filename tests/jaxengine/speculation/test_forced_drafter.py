"""What a grammar leaves no choice about is drafted, in the tokenizer's tokens; the rest is as without a grammar."""

from typing import Any

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.acceptance import FORCED, LENGTH, Rates
from jaxengine.speculation.forced_drafter import ForcedDrafter
from jaxengine.speculation.text_drafter import TextDrafter


class Forcing:
    """In place of a matcher: the text must be `text`, but for None, where anything goes."""

    def __init__(self, tokens: list[int], text: list[int | None]) -> None:
        self.tokens, self.text = tokens, text
        self.asked = 0

    def forced(self) -> list[int]:
        self.asked += 1
        found: list[int] = []
        for id in self.text[len(self.tokens) :]:
            if id is None:
                break
            found.append(id)
        return found


def drafter_of(tokens: list[int], text: list[int | None]) -> tuple[ForcedDrafter, Forcing]:
    matcher: Any = Forcing(tokens, text)
    other = TextDrafter(tokens, Speculation(4, prompt_lookup_min=1), Rates(LENGTH))
    return ForcedDrafter(tokens, matcher, Rates(FORCED), other), matcher


def test_what_must_follow_is_the_draft_and_is_asked_for_once() -> None:
    tokens = [9]
    drafter, matcher = drafter_of(tokens, [9, 1, 2, 3, 4, None, 5])
    drafter.read()
    assert drafter.draft(3) == [1, 2, 3] and len(drafter.chances(3)) == 3
    tokens += [1, 2]
    drafter.read()
    assert drafter.draft(3) == [3, 4] and matcher.asked == 1
    tokens += [3, 4, 8]
    drafter.read()
    assert drafter.draft(3) == [5] and matcher.asked == 2


def test_where_nothing_must_follow_the_text_is_the_draft() -> None:
    tokens = [7, 8, 9, 7]
    drafter, _ = drafter_of(tokens, [None] * 9)
    drafter.read()
    assert drafter.draft(2) == [8, 9]
    assert drafter.chances(2) == drafter.other.chances(2) != []


def test_other_tokens_for_the_same_text_are_no_reason_to_ask_for_the_rest_of_it_again_and_again() -> None:
    tokens = [9]
    drafter, matcher = drafter_of(tokens, [9, *range(1000, 2000)])
    for token in range(300):  # never as expected
        drafter.read()
        tokens.append(token)
    assert matcher.asked == 1


def test_how_often_it_comes_in_these_tokens_is_learnt() -> None:
    tokens = [9]
    drafter, _ = drafter_of(tokens, [9, *range(1000, 1100)])
    drafter.read()
    before = drafter.chances(1)
    tokens.append(0)
    drafter.read()
    assert drafter.draft(4) == [] and drafter.rates.rate(0) < before[0]
