"""A row with a grammar may have a draft: what is sampled behind each guess has the mask of that place."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar, GrammarError, Reasoning
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.acceptance import FORCED, Rates
from jaxengine.speculation.step_times import StepTimes
from tests.jaxengine.drafting import ORACLE, assert_same, drafting, plain, plans_of
from tests.jaxengine.engine.test_grammars import PERSON, ROOM, WAYS, is_person
from tests.jaxengine.engines import Answers, ask, load, prompt, serve

pytestmark = pytest.mark.slow

MOST = 7  # tokens of a draft
DRAFTS = {"oracle": ORACLE, "anything": {}}
BOUND = [ask(n, prompt(3 + n, n), grammar=PERSON, max_tokens=ROOM, **WAYS[n]) for n in range(len(WAYS))]
FREE = [ask(100 + n, prompt(4 + n, n), max_tokens=30, temperature=n % 2) for n in range(4)]
REQUESTS = [*BOUND[:7], *FREE, *BOUND[7:]]


@pytest.fixture(scope="module")
def engine(tiny: Callable[[str], Path], compile_cache: None) -> Engine:
    return load(tiny("llama2_gqa"), every_bucket=True, speculate=MOST)


@pytest.fixture(scope="module")
def expected(engine: Engine) -> Answers:
    return plain(engine, REQUESTS)


@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("seed", range(2))
def test_requests_with_grammars_are_told_what_they_are_told_without_drafts(
    engine: Engine, expected: Answers, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plans_of(engine, monkeypatch)
    with drafting(engine, expected, seed, **DRAFTS[kind]) as drafts:  # type: ignore[arg-type]
        answers = serve(engine, REQUESTS)
    for request in REQUESTS:
        assert_same(answers[request.id], expected[request.id], request)
    assert all(is_person(answers[request.id]) for request in BOUND)
    assert any(len(row.draft) > 1 for plan in plans for row in plan.rows if row.sequence.matcher)
    assert sum(drafts.accepted) > 50


def test_a_text_that_is_foreseen_whole_takes_few_steps(engine: Engine, expected: Answers) -> None:
    request = BOUND[0]
    before = engine.stats().steps
    with drafting(engine, expected, **ORACLE):
        assert_same(serve(engine, [request])[request.id], expected[request.id], request)
    tokens = len(expected[request.id].tokens)
    assert engine.stats().steps - before <= 3 + -(-tokens // (MOST + 1))


def test_a_guess_that_the_grammar_forbids_is_left_out_and_those_behind_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(0, prompt(9), max_tokens=30, temperature=1.0, grammar=Grammar("regex", "[a-z]{20}"))
    expected = plain(engine, [request])
    plans = plans_of(engine, monkeypatch)
    with drafting(engine, expected, kinds=("random",), share=1.0, waiting=1.0):
        assert_same(serve(engine, [request])[0], expected[0], request)
    assert not any(len(row.draft) == MOST for plan in plans for row in plan.rows)


def test_reasoning_has_no_draft_and_the_answer_behind_it_has(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reasoning = Reasoning(begin=(), end=(100, 101), budget=6)
    request = ask(0, prompt(9), max_tokens=ROOM, temperature=1.0, grammar=PERSON, reasoning=reasoning)
    expected = plain(engine, [request])
    plans = plans_of(engine, monkeypatch)
    with drafting(engine, expected, **ORACLE):
        assert_same(serve(engine, [request])[0], expected[0], request)
    drafted = [row.start for plan in plans for row in plan.rows if row.draft]
    assert drafted and min(drafted) >= 9 + 6


def test_a_grammar_that_breaks_in_a_step_with_its_draft_ends_its_request_only(
    engine: Engine, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks, culprit = engine.constraints.masks, BOUND[1].id

    def breaking(sequences: list[Sequence]) -> tuple[np.ndarray, list[tuple[Sequence, GrammarError]]]:
        filled, broken = masks(sequences)
        late = [each for each in sequences if each.request.id == culprit and len(each.tokens) > each.prompt_length + 3]
        return filled, [*broken, *((each, GrammarError("grammar: too costly")) for each in late)]

    monkeypatch.setattr(engine.constraints, "masks", breaking)
    failures = engine.stats().step_failures
    with drafting(engine, expected, **ORACLE):
        answers = serve(engine, REQUESTS)
    assert "too costly" in answers[culprit].error
    assert 3 < len(answers[culprit].ids) < len(expected[culprit].ids)
    for request in REQUESTS:
        if request.id != culprit:
            assert_same(answers[request.id], expected[request.id], request)
    assert engine.stats().step_failures == failures


def test_what_masks_behind_guesses_cost_is_not_charged_to_the_grammar(engine: Engine, expected: Answers) -> None:
    request = BOUND[0]
    engine.submit(request)
    while not (live := [each for each in engine.requests.live.values() if each.matcher is not None]):
        engine.step()
    matcher = live[0].matcher
    assert matcher is not None
    spent = vars(matcher.allowance).copy()
    assert matcher.allows([0, 0]) == 0
    assert list(matcher.behind([])) == []
    assert vars(matcher.allowance) == spent
    engine.cancel(request.id)
    while not engine.idle:
        engine.step()


def test_what_a_grammar_forces_is_drafted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the policy that serves, as if every step took as long. Nothing of it stood in the text before, and no two of
    its characters are one token, which a random model would not choose.
    """
    note = StepTimes.note
    monkeypatch.setattr(StepTimes, "note", lambda times, size, seconds: note(times, size, 1.0))
    assert engine.speculator is not None
    engine.speculator.forced = Rates(FORCED)  # in other tests a random model wrote the same in other tokens
    keys = "QZXJKVWYUIHGFPASDMNB0918273645"
    request = ask(0, prompt(9), temperature=1.0, max_tokens=80, grammar=Grammar("regex", f"[a-z]{keys}"))
    expected = plain(engine, [request])
    before, steps = engine.stats().accepted_draft_tokens, engine.stats().steps
    assert_same(serve(engine, [request])[0], expected[0], request)
    accepted = sum(engine.stats().accepted_draft_tokens) - sum(before)
    assert accepted > len(keys) / 2 > engine.stats().steps - steps
