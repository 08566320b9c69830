"""Random walks through a grammar: texts that a model could write under it, token by token."""

import random
from collections.abc import Sequence
from functools import cache

import numpy
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

EOS = "</s>"
LIMIT = 5000  # tokens of a walk
CORPUS = ['{"name": "get_weather", "arguments": {"city": "Rome", "days": 12}}', "the quick brown fox", "0123456789"] * 9


class Vocabulary:
    """A byte-level tokenizer of 400 ids and some special tokens; llguidance's view of it."""

    def __init__(self, specials: Sequence[str]) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(CORPUS, trainer)
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
        self.tokenizer = tokenizer
        self.specials = frozenset(specials)
        self.eos = tokenizer.token_to_id(EOS)
        self.guide = LLTokenizer(tokenizer.to_str(), n_vocab=tokenizer.get_vocab_size(), eos_token=[self.eos])

    def token_id(self, text: str) -> int | None:
        return self.tokenizer.token_to_id(text) if text in self.specials else None

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


@cache
def vocabulary(*specials: str) -> Vocabulary:
    return Vocabulary(specials)


def matcher(vocabulary: Vocabulary, grammar: str) -> LLMatcher:
    made = LLMatcher(vocabulary.guide, grammar, log_level=0)
    assert not made.is_error(), f"{made.get_error()}\n{grammar}"
    return made


def walk(
    vocabulary: Vocabulary, grammar: str, seed: int, towards: Sequence[str], *, begin: str = "", end: float = 0.3
) -> str:
    """A text that the grammar accepts. Random tokens alone would hardly spell `towards`, the ends of parts.

    begin: what the text begins with, which the grammar must let through.
    end: probability of ending where the text may end.
    """
    draw = random.Random(seed)
    guide, ids = matcher(vocabulary, grammar), vocabulary.ids(begin)
    assert guide.try_consume_tokens(ids) == len(ids), f"{begin!r} is not let through"
    mask = allocate_token_bitmask(1, vocabulary.guide.vocab_size)
    while len(ids) < LIMIT:
        if towards and draw.random() < 0.15:
            spelled = vocabulary.ids(draw.choice(towards))
            consumed = guide.try_consume_tokens(spelled)
            if consumed == len(spelled):
                ids += spelled
                continue
            assert guide.rollback(consumed)
        fill_next_token_bitmask(guide, mask, 0)
        allowed = numpy.flatnonzero(numpy.unpackbits(mask.view(numpy.uint8), bitorder="little"))
        assert len(allowed), guide.get_error()
        if vocabulary.eos in allowed and (len(allowed) == 1 or draw.random() < end):
            return vocabulary.text(ids)
        id = int(draw.choice([each for each in allowed if each != vocabulary.eos]))
        assert guide.consume_token(id), guide.get_error()
        ids.append(id)
    raise AssertionError(f"no end after {LIMIT} tokens: {vocabulary.text(ids)[-300:]!r}")


def accepts(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    """Whether the whole text is in the grammar's language, in the tokens in which it is encoded."""
    guide, ids = matcher(vocabulary, grammar), vocabulary.ids(text)
    return guide.try_consume_tokens(ids) == len(ids) and guide.is_accepting()
