"""Writes random texts that a grammar allows, as a model without any sense would: one allowed token after another.

A text soon comes to an end: after some tokens whatever closes a string, a list or an object is preferred.
"""

import random
import string
from functools import cache
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask
from tokenizers import Tokenizer

from convert.source import open_model
from jaxengine.grammar.grammar import Grammar, Kind
from jaxengine.grammar.source import LIMITS, library_text

END_OF_TURN = "<|im_end|>"
CLOSING = ('"', "}", "]", '"}', '"]', "}}")  # of JSON
PUNCTUATION = tuple(string.punctuation)  # where something else may follow in a regex
MAX_TOKENS = 400
DRAWS = 24  # before all allowed ids are listed


class Refused(Exception):
    """llguidance does not compile the grammar."""


class RandomWriter:
    """Of texts over the default model's vocabulary.

    free: so many tokens are drawn before the text is brought to its end.
    """

    def __init__(self, seed: int = 0, free: int = 40) -> None:
        self._random = random.Random(seed)
        self._free = free
        self._text = tokenizer()
        self._size = self._text.get_vocab_size()
        self._eos = self._text.token_to_id(END_OF_TURN)
        self._closing = self._ids(CLOSING)
        self._punctuation = self._ids(PUNCTUATION)
        self._mask = np.zeros((1, -(-self._size // 32)), np.int32)
        self._bytes = self._mask.view(np.uint8)[0]  # bit i % 8 of byte i // 8 is id i

    def texts(self, kind: Kind, grammar: str, count: int) -> list[str]:
        """Up to `count` texts: those that did not end within `MAX_TOKENS` are missing.

        Raises:
            Refused: it cannot be compiled, or allows nothing at all.
        """
        matcher = compiled(kind, grammar)
        found = (self._one(matcher.deep_copy()) for _ in range(count))
        return [self._text.decode(ids, skip_special_tokens=False) for ids in found if ids is not None]

    def _one(self, matcher: LLMatcher) -> list[int] | None:
        ids: list[int] = []
        while len(ids) < MAX_TOKENS:
            fill_next_token_bitmask(matcher, self._mask, 0)
            assert not matcher.is_error(), matcher.get_error()
            chosen = self._choose(late=len(ids) >= self._free)
            if chosen == self._eos:
                return ids
            assert matcher.consume_token(chosen), "the mask allowed a token that the matcher refuses"
            ids.append(chosen)
        return None

    def _choose(self, late: bool) -> int:
        if self._allowed(self._eos) and (late or self._random.random() < 0.5):
            return self._eos
        for ids in (self._closing, self._punctuation) if late else (self._closing,):
            allowed = [id for id in ids if self._allowed(id)]
            if allowed and self._random.random() < (0.6 if late else 0.25):
                return self._random.choice(allowed)
        return self._any()

    def _any(self) -> int:
        draws = (self._random.randrange(self._size) for _ in range(DRAWS))
        found = next((id for id in draws if self._allowed(id)), None)
        if found is None:
            allowed = np.flatnonzero(np.unpackbits(self._bytes, bitorder="little"))
            if not len(allowed):
                raise Refused("nothing is allowed")
            found = int(self._random.choice(allowed))
        return found

    def _ids(self, texts: tuple[str, ...]) -> list[int]:
        """Of those texts that are one token."""
        return [id for id in map(self._text.token_to_id, texts) if id is not None]

    def _allowed(self, id: int) -> bool:
        return bool(self._bytes[id >> 3] >> (id & 7) & 1)


def compiled(kind: Kind, grammar: str) -> LLMatcher:
    """Raises `Refused`."""
    try:
        source = library_text(Grammar(kind, grammar))
    except ValueError as error:
        raise Refused(str(error)) from error
    matcher = LLMatcher(_vocabulary(), source, limits=LIMITS, log_level=0)
    if matcher.is_error():
        raise Refused(matcher.get_error())
    return matcher


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(_file()))


@cache
def _vocabulary() -> LLTokenizer:
    end = tokenizer().token_to_id(END_OF_TURN)
    return LLTokenizer(_file().read_text(), n_vocab=tokenizer().get_vocab_size(), eos_token=[end])


@cache
def _file() -> Path:
    return Path(open_model(None).directory) / "tokenizer.json"
