"""Masks are of the ids that have a logit, and a text whose masks take too long ends."""

import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from jaxengine.grammar.grammar import Grammar, GrammarError, TooCostly
from jaxengine.grammar.mask_filler import FEW, MaskFiller
from jaxengine.grammar.matcher import Matcher
from jaxengine.grammar.source import LIMITS, library_text
from jaxengine.grammar.trial import trial
from tests.jaxengine.grammar import hostile, vocabulary

ENOUGH = 400  # tokens


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(vocabulary.tokenizer_json(), n_vocab=vocabulary.SIZE, eos_token=[vocabulary.EOS])


def matcher(tokenizer: LLTokenizer, grammar: Grammar) -> Matcher:
    return Matcher(LLMatcher(tokenizer, library_text(grammar), log_level=0, limits=LIMITS))


def write(filler: MaskFiller, matchers: list[Matcher], token: int) -> dict[int, GrammarError]:
    """Texts of `ENOUGH` times the same token, up to the first mask that fails."""
    for _ in range(ENOUGH):
        _, broken = filler.fill(matchers)
        if broken:
            return broken
        for each in matchers:
            each.consume(token)
    return {}


def test_a_text_that_only_an_id_without_a_logit_can_continue_is_broken() -> None:
    text = Tokenizer.from_str(vocabulary.tokenizer_json())
    logits = text.get_vocab_size()
    assert logits % 32, "the id has a bit in the last word of the mask"
    text.add_special_tokens(["<extra>"])
    tokenizer = LLTokenizer(text.to_str(), n_vocab=logits + 1, eos_token=[vocabulary.EOS])
    matchers = [Matcher(LLMatcher(tokenizer, f"start: {start}")) for start in ("<extra>", '"a"')]
    masks, broken = MaskFiller(logits, logits + 1, threads=1).fill(matchers)
    assert list(broken) == [0]
    assert masks[1].any()


@pytest.mark.parametrize("others", [0, 3 * FEW])
def test_a_text_whose_masks_take_too_long_ends_alone(tokenizer: LLTokenizer, others: int) -> None:
    """Its masks are cheap where it is tried. Later each takes longer than the one before."""
    assert trial(tokenizer, [vocabulary.EOS], hostile.LATE) == ""
    filler = MaskFiller(vocabulary.SIZE, vocabulary.SIZE, threads=2)
    late = matcher(tokenizer, hostile.LATE)
    for zero in tokenizer.tokenize_str(hostile.ZEROS):
        late.consume(zero)
    cheap = [matcher(tokenizer, Grammar("regex", "[a-z]*")) for _ in range(others)]
    [letter] = tokenizer.tokenize_str("a")
    broken = write(filler, [*cheap, late], letter)
    assert list(broken) == [others]
    assert isinstance(broken[others], TooCostly)


def test_an_ordinary_text_may_be_long(tokenizer: LLTokenizer) -> None:
    filler = MaskFiller(vocabulary.SIZE, vocabulary.SIZE, threads=1)
    fields = ", ".join(f'"field{number}": {{"type": "string"}}' for number in range(100))
    text = matcher(tokenizer, Grammar("json_schema", f'{{"items": {{"type": "object", "properties": {{{fields}}}}}}}'))
    draw = random.Random(0)
    for _ in range(2000):
        [mask], broken = filler.fill([text])
        assert not broken
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if (id := int(draw.choice(ids))) == vocabulary.EOS:
            break
        text.consume(id)
