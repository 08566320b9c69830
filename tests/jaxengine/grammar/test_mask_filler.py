"""Masks are of the ids that have a logit, whatever else the tokenizer knows."""

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from jaxengine.grammar.mask_filler import MaskFiller
from jaxengine.grammar.matcher import Matcher
from tests.jaxengine.grammar import vocabulary


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
