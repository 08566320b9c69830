"""What may come next: the marks of reasoning and the grammar's ids, at their places."""

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from jaxengine.grammar.grammar import Grammar, GrammarError, Reasoning
from jaxengine.grammar.mask import allow, words
from jaxengine.grammar.mask_filler import MaskFiller
from jaxengine.grammar.matcher import Matcher
from jaxengine.grammar.source import LIMITS, library_text
from tests.jaxengine.grammar.vocabulary import EOS, SIZE, tokenizer_json

OPEN, A, B = 300, 301, 302  # marks


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(tokenizer_json(), n_vocab=SIZE, eos_token=[EOS])


@pytest.fixture(scope="module")
def filler() -> MaskFiller:
    return MaskFiller(SIZE, SIZE, 2)


def grammar(tokenizer: LLTokenizer, regex: str) -> LLMatcher:
    return LLMatcher(tokenizer, library_text(Grammar("regex", regex)), log_level=0, limits=LIMITS)


def allowed(filler: MaskFiller, matcher: Matcher) -> set[int]:
    [mask], broken = filler.fill([matcher])
    assert not broken
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:SIZE]).tolist())


EVERYTHING = set(range(SIZE))


def test_a_grammar_allows_its_ids_and_then_the_end(tokenizer: LLTokenizer, filler: MaskFiller) -> None:
    matcher = Matcher(grammar(tokenizer, "7"))
    [seven] = tokenizer.tokenize_str("7")
    assert allowed(filler, matcher) == {seven}
    matcher.consume(seven)
    assert allowed(filler, matcher) == {EOS}


def test_reasoning_is_free_until_its_last_mark(tokenizer: LLTokenizer, filler: MaskFiller) -> None:
    matcher = Matcher(grammar(tokenizer, "7"), Reasoning((), (A, B)))
    for id in (5, A, 6, A, A, B):
        assert allowed(filler, matcher) == EVERYTHING
        matcher.consume(id)
    assert allowed(filler, matcher) == set(tokenizer.tokenize_str("7"))


def test_the_first_id_may_open_reasoning_or_begin_the_answer(tokenizer: LLTokenizer, filler: MaskFiller) -> None:
    [seven] = tokenizer.tokenize_str("7")
    matcher = Matcher(grammar(tokenizer, "7"), Reasoning((OPEN,), (A,)))
    assert allowed(filler, matcher) == {OPEN, seven}
    matcher.consume(OPEN)
    assert allowed(filler, matcher) == EVERYTHING
    answering = Matcher(grammar(tokenizer, "7"), Reasoning((OPEN,), (A,)))
    answering.consume(seven)
    assert allowed(filler, answering) == {EOS}


@pytest.mark.parametrize("written, rest", [([5, 5, 5], [A, A, B]), ([5, 5, A], [A, B]), ([5, A, A], [B])])
def test_a_used_up_budget_forces_what_is_missing_of_the_end(
    filler: MaskFiller, written: list[int], rest: list[int]
) -> None:
    matcher = Matcher(None, Reasoning((), (A, A, B), budget=3))
    for id in written:
        assert allowed(filler, matcher) == EVERYTHING
        matcher.consume(id)
    for id in rest:
        assert allowed(filler, matcher) == {id}
        matcher.consume(id)
    assert allowed(filler, matcher) == EVERYTHING


def test_masks_of_many_rows_are_those_of_each(tokenizer: LLTokenizer, filler: MaskFiller) -> None:
    matchers = [Matcher(grammar(tokenizer, regex)) for regex in ("7", "[a-f]+", "x|y", "the quick .*", "[0-9]{4}")]
    masks, broken = filler.fill([*matchers, Matcher(None)])
    assert not broken
    for matcher, mask in zip(matchers, masks, strict=False):
        assert np.array_equal(mask, filler.fill([matcher])[0][0])
    assert (masks[5] == -1).all()


def test_an_id_that_the_grammar_does_not_allow_is_an_error(tokenizer: LLTokenizer) -> None:
    with pytest.raises(GrammarError, match="cannot go on"):
        Matcher(grammar(tokenizer, "7")).consume(9)


def test_a_broken_matcher_is_named_and_harms_no_other(tokenizer: LLTokenizer, filler: MaskFiller) -> None:
    broken_one, fine = grammar(tokenizer, "7"), Matcher(grammar(tokenizer, "7"))
    broken_one.consume_token(9)
    masks, broken = filler.fill([Matcher(broken_one), fine])
    assert broken.keys() == {0}
    assert np.array_equal(masks[1], filler.fill([fine])[0][0])


def test_ids_that_only_the_tokenizer_has_are_left_out(tokenizer: LLTokenizer) -> None:
    masks, _ = MaskFiller(100, SIZE, 1).fill([Matcher(grammar(tokenizer, "(?s:.*)"))])
    assert masks.shape == (1, words(100))


def test_allow_sets_the_bit_of_the_id_alone() -> None:
    for id in (0, 31, 32, 95):
        mask = np.zeros(3, np.int32)
        allow(mask, id)
        assert np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() == [id]


def test_what_must_follow_is_known_within_the_answer(tokenizer: LLTokenizer) -> None:
    matcher = Matcher(grammar(tokenizer, "[78]123[78]"), Reasoning((), (A,)), (), tokenizer.tokenize_bytes)
    assert matcher.forced() == []
    matcher.consume(A)
    assert matcher.forced() == []
    matcher.consume(*tokenizer.tokenize_str("7"))
    assert matcher.forced() == tokenizer.tokenize_str("123")
    for id in tokenizer.tokenize_str("1"):
        matcher.consume(id)
    assert matcher.forced() == tokenizer.tokenize_str("23")


def test_asking_for_very_much_that_must_follow_breaks_nothing(tokenizer: LLTokenizer, filler: MaskFiller) -> None:
    text = library_text(Grammar("lark", 'start: "7"{100000}'))
    document = LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    matcher = Matcher(document, encode=tokenizer.tokenize_bytes)
    assert len(matcher.forced()) > 1_000
    [seven] = tokenizer.tokenize_str("7")
    assert seven in allowed(filler, matcher)
    matcher.consume(seven)
    assert len(matcher.forced()) > 1_000
