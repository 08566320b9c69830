"""`Beams` finds what `generate(num_beams=…)` of transformers finds, and so does the search that random walks compare
searches with. The model is a table, so that a case takes milliseconds and no two texts are alike.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.beams import Beams
from jaxengine.request.event import Beam, FinishReason
from tests.jaxengine.beam_references import Found, searched
from tests.jaxengine.numpy_beam_search import Searched, beam_search
from tests.jaxengine.table_model import TableModel

PROMPT = [3, 1, 4]
WIDTHS, PENALTIES, STOPPING = range(2, 7), (0.0, 1.0, -0.5, 2.0), (True, False, "never")


class Case(NamedTuple):
    """A search of a random table. `min_tokens` are generated before an answer may end."""

    model: TableModel
    search: BeamSearch
    max_tokens: int
    ends: list[int]
    min_tokens: int = 0

    def logprobs(self, generated: list[int]) -> np.ndarray:
        row = self.model.logprobs([*PROMPT, *generated])
        if len(generated) < self.min_tokens:
            row[self.ends] = -np.inf
        return row

    def by_transformers(self) -> Found:
        processors = {"min_new_tokens": self.min_tokens} if self.min_tokens else {}
        return searched(self.model, PROMPT, self.search, self.max_tokens, self.ends, use_cache=False, **processors)

    def by_numpy(self) -> Searched:
        return beam_search(self.logprobs, self.search, self.max_tokens, self.ends)

    def beams(self, **options: Any) -> Beams:
        return Beams(self.search, self.max_tokens, dict.fromkeys(self.ends, FinishReason.EOS), **options)


def cases() -> list[Case]:
    chance, drawn = random.Random(0), []
    for seed, (width, penalty, stopping) in enumerate(itertools.product(WIDTHS, PENALTIES, STOPPING)):
        for ends, min_tokens in ((chance.randint(0, 1), 0), (chance.randint(2, 4), 0), (1, chance.randint(1, 4))):
            vocab = chance.choice([12, 12, 40])
            answers = chance.choice([0, 0, width, chance.randint(1, width)])
            search = BeamSearch(width=width, answers=answers, length_penalty=penalty, early_stopping=stopping)
            model = TableModel(vocab, seed, sharpness=chance.choice([0.3, 1.0, 3.0]))
            max_tokens = chance.choice([1, 2, 5, 9, 16])
            chosen = sorted(chance.sample(range(vocab), ends))
            drawn.append(Case(model, search, max_tokens, chosen, min(min_tokens, max_tokens)))
    return drawn


CASES = cases()


def candidates(row: np.ndarray, count: int) -> tuple[tuple[int, float], ...]:
    """As a step finds them."""
    chosen = np.argsort(-row, stable=True)[:count]
    return tuple(zip(chosen.tolist(), row[chosen].tolist(), strict=True))


def run(beams: Beams, logprobs: Callable[[list[int]], np.ndarray]) -> list[list[list[int]]]:
    """Step until `beams` is done. Returns the texts of the beams after each step, as its moves make them."""
    texts: list[list[int]] = [[]]
    steps = []
    while True:
        for number, text in enumerate(texts):
            assert not beams.ready
            beams.note(number, candidates(logprobs(text), beams.candidates))
        assert beams.ready
        moves = beams.advance()
        if beams.done:
            return steps
        texts += [[] for _ in range(len(beams.branches) - len(texts))]
        for parent, child in moves:
            texts[child] = [*texts[parent]]
        for text, branch in zip(texts, beams.branches, strict=True):
            text.append(branch.tokens[-1].id)
            assert text == [token.id for token in branch.tokens]
        steps.append([[*text] for text in texts])


def found(answers: list[Beam]) -> Found:
    return [([token.id for token in answer.tokens], answer.score) for answer in answers]


def assert_same(ours: Found, theirs: Found, case: Case) -> None:
    assert [ids for ids, _ in ours] == [ids for ids, _ in theirs], case
    scores = [score for _, score in theirs]
    np.testing.assert_allclose([score for _, score in ours], scores, rtol=1e-4, err_msg=str(case))


@pytest.mark.parametrize("width", WIDTHS)
def test_answers_and_scores_are_those_of_transformers(width: int) -> None:
    for case in [case for case in CASES if case.search.width == width]:
        beams = case.beams()
        run(beams, case.logprobs)
        theirs = case.by_transformers()
        assert_same(found(beams.answers), theirs, case)
        assert_same(case.by_numpy().answers, theirs, case)


def test_the_cases_meet_what_they_are_meant_to_meet() -> None:
    assert len(CASES) == 180
    early = full = mixed = fewer = banned = 0
    for case in CASES:
        lengths = {len(ids) for ids, _ in case.by_numpy().answers}
        early += max(lengths) < case.max_tokens
        full += min(lengths) == case.max_tokens > 1
        mixed += len(lengths) > 1
        fewer += 0 < case.search.answers < case.search.width
        banned += case.min_tokens > 1
    assert min(early, full, mixed, fewer, banned) >= 20, (early, full, mixed, fewer, banned)


def test_the_beams_of_each_step_are_those_that_a_ranking_of_whole_vocabularies_keeps() -> None:
    for case in CASES:
        ours, theirs = run(case.beams(), case.logprobs), case.by_numpy().steps
        assert [sorted(step) for step in ours] == [sorted(step) for step in theirs], case


def test_a_beam_of_one_is_the_greedy_answer() -> None:
    model = TableModel(40, 0)
    beams = Case(model, BeamSearch(width=1), 8, []).beams()
    assert all(not moves for moves in _moves(beams, model))
    text = [*PROMPT]
    for _ in range(8):
        text.append(int(model.logits(text).argmax()))
    assert found(beams.answers)[0][0] == text[len(PROMPT) :]


def _moves(beams: Beams, model: TableModel) -> list[list[tuple[int, int]]]:
    moves = []
    while not beams.done:
        for number, branch in enumerate(beams.branches):
            text = [*PROMPT, *(token.id for token in branch.tokens)]
            beams.note(number, candidates(model.logprobs(text), beams.candidates))
        moves.append(beams.advance())
    return moves


def test_a_child_takes_the_place_of_a_beam_without_children_and_no_parent_is_overwritten() -> None:
    for case in CASES:
        beams = case.beams()
        first, *later = _moves(beams, case.model)
        width = case.search.width
        assert first == [(0, child) for child in range(1, width)] or beams.done
        for moves in later:
            parents, children = {parent for parent, _ in moves}, [child for _, child in moves]
            assert len({*children}) == len(children) and not parents & {*children}


def test_a_beam_may_die_and_another_live_on_as_several() -> None:
    beams = Beams(BeamSearch(width=3), 9, {})
    beams.note(0, ((5, -1.0), (6, -2.0), (7, -3.0)))
    assert beams.advance() == [(0, 1), (0, 2)]
    beams.note(0, ((5, -9.0), (6, -9.1), (7, -9.2)))
    beams.note(1, ((1, -1.0), (2, -1.1), (3, -1.2)))
    beams.note(2, ((5, -9.0), (6, -9.1), (7, -9.2)))
    assert beams.advance() == [(1, 0), (1, 2)]
    assert [[token.id for token in branch.tokens] for branch in beams.branches] == [[6, 2], [6, 1], [6, 3]]
    assert [branch.total for branch in beams.branches] == pytest.approx([-3.1, -3.0, -3.2])
    assert len({id(branch.before) for branch in beams.branches}) == 1, "they share what they have in common"


def test_an_answer_says_how_it_ended_and_length_comes_first() -> None:
    ends = {1: FinishReason.EOS, 2: FinishReason.STOP_TOKEN}
    beams = Beams(BeamSearch(width=2, early_stopping="never", length_penalty=2.0), 2, ends)
    beams.note(0, ((1, -0.1), (2, -0.2), (3, -0.3), (4, -0.4)))
    beams.advance()
    assert [answer.finish for answer in beams.finished] == [FinishReason.EOS, FinishReason.STOP_TOKEN]
    for number in range(2):
        beams.note(number, ((1, -0.05), (2, -3.0), (3, -3.1), (4, -3.2)))
    beams.advance()
    assert beams.done and [answer.finish for answer in beams.answers] == [FinishReason.LENGTH, FinishReason.EOS]
    assert [[token.id for token in answer.tokens] for answer in beams.answers] == [[3, 1], [1]]


def test_an_end_that_may_not_come_ends_nothing() -> None:
    beams = Beams(BeamSearch(width=2), 5, {1: FinishReason.EOS})
    beams.note(0, ((7, -0.1), (1, -math.inf), (5, -math.inf)))
    beams.advance()
    assert not beams.finished and [branch.tokens[0].id for branch in beams.branches] == [7, 5]


def test_tokens_of_answers_list_their_alternatives() -> None:
    case = CASES[-3]
    beams = case.beams(listed=2)
    run(beams, case.logprobs)
    for answer in beams.answers:
        for i, token in enumerate(answer.tokens):
            row = case.logprobs([each.id for each in answer.tokens[:i]])
            assert token.top == candidates(row, 2) and token.logprob == row[token.id]


def test_what_was_noted_is_found_again_after_it_was_forgotten() -> None:
    case = CASES[40]
    once, twice = case.beams(), case.beams()
    while not once.done:
        for beams in (once, twice):
            for number, branch in enumerate(beams.branches):
                noted = candidates(case.logprobs([token.id for token in branch.tokens]), beams.candidates)
                beams.note(number, noted)
        twice.forget()
        assert not twice.ready
        for number, branch in enumerate(twice.branches):
            row = case.logprobs([token.id for token in branch.tokens])
            twice.note(number, candidates(row, twice.candidates))
        assert once.advance() == twice.advance()
    assert once.answers == twice.answers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, r"width must be in \[1, 64\], got 0"),
        ({"width": 65}, r"width must be in \[1, 64\], got 65"),
        ({"width": 2.5}, r"width must be a whole number, got 2.5"),
        ({"answers": -1}, r"answers must be in \[0, 4\], got -1"),
        ({"answers": 5}, r"answers must be in \[0, 4\], got 5"),
        ({"length_penalty": 10.5}, r"length_penalty must be in \[-10, 10\], got 10.5"),
        ({"length_penalty": -11.0}, r"length_penalty must be in \[-10, 10\], got -11"),
        ({"length_penalty": float("nan")}, "length_penalty must be in .* got nan"),
        ({"length_penalty": float("inf")}, "length_penalty must be in .* got inf"),
        ({"early_stopping": "always"}, 'early_stopping must be True, False or "never", got .always.'),
        ({"length_penalty": "1"}, "length_penalty must be a number, got '1'"),
        ({"early_stopping": None}, "early_stopping must be .* got None"),
        ({"early_stopping": 1}, "early_stopping must be .* got 1"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_by_field_value_and_limit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BeamSearch(width=4), **fields)
