"""Drafts come from the text itself or from an answer to another, whichever is likelier right."""

import math
from typing import Any

import pytest

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.acceptance import LENGTH, Rates
from jaxengine.speculation.answer_drafter import AnswerDrafter
from jaxengine.speculation.recent_answers import RecentAnswers
from jaxengine.speculation.suffix_drafter import SuffixDrafter
from jaxengine.speculation.text_drafter import TextDrafter

SURE = Rates(LENGTH)
SURE.rates = [0.99] * len(SURE.rates)


def drafter_of(tokens: list[int], answer: list[int], rates: Rates = SURE, **options: Any) -> SuffixDrafter:
    chosen = Speculation(**{"num_speculative_tokens": 8, "method": "suffix", **options})
    recent = RecentAnswers(10, chosen.suffix_decoding_max_tree_depth)
    recent.add("scope", [], answer)
    own = TextDrafter(tokens, chosen, rates)
    return SuffixDrafter(tokens, chosen, own, AnswerDrafter(tokens, "scope", recent, rates))


def test_the_longer_match_is_drafted_from() -> None:
    answer = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert drafter_of([5, 6, 90, 91, 92, 3, 4, 5, 6], answer, Rates(LENGTH)).draft(2) == [7, 8]
    assert drafter_of([2, 3, 4, 5, 6, 90, 91, 92, 2, 3, 4, 5, 6], answer[3:], Rates(LENGTH)).draft(2) == [90, 91]


def test_where_one_stops_the_other_goes_on() -> None:
    tokens = [50, 51, 52, 1, 2, 3]
    drafter = drafter_of(tokens, [1, 2, 3, 4])
    assert drafter.draft(3) == [4]
    tokens += [4, 50, 51, 52]
    drafter.read()
    assert drafter.draft(3) == [1, 2, 3]


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.5, 20.0])
def test_a_draft_is_not_longer_than_so_many_times_the_match(factor: float) -> None:
    drafter = drafter_of([1, 2, 3, 4], list(range(40)), suffix_decoding_max_spec_factor=factor)
    assert drafter.best.length == 4
    assert len(drafter.chances(8)) == min(8, int(4 * factor))


@pytest.mark.parametrize("least", [0.1, 0.5, 0.98, 1.0])
def test_no_guess_is_less_likely_right_than_asked_for(least: float) -> None:
    drafter = drafter_of(list(range(20)), list(range(40)), suffix_decoding_min_token_prob=least)
    assert len(drafter.chances(8)) == min(8, math.floor(math.log(least) / math.log(0.99)))


def test_a_match_is_counted_up_to_the_depth() -> None:
    drafter = drafter_of(list(range(20)), list(range(40)), suffix_decoding_max_tree_depth=5)
    assert drafter.best.length == len(drafter.chances(8)) == 5


def test_the_text_alone_is_drafted_from_where_there_are_no_answers() -> None:
    tokens, options = [1, 2, 3, 4, 9, 1, 2], Speculation(8, "suffix")
    drafter = SuffixDrafter(tokens, options, TextDrafter(tokens, options, SURE))
    tokens.append(3)
    drafter.read()
    assert drafter.draft(2) == [4, 9] and len(drafter.chances(8)) == 3
