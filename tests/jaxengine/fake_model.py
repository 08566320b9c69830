"""A model made of hashes, and what it makes of a request that is served alone: the truth, which no page had a part in.

Instead of keys and values a position has a content: a number computed from the content before it and from the
position's token. The first content is computed from the salt, unlike in a real model, so that a page shared across
salts reads as wrong. The sampled token is a pure function of the seed and the last content, and so are the logprobs
that a beam search adds up. With an encoder, each position also reads all contents of the encoder input, and each of
these depends on the whole input. Every content depends on the adapter. Where a text must be computed anew when it has
grown beyond a length (`Scheduler.rope_switch_length`), all its contents are others then. Rows of images stand in for
tokens, or where layers attend to images each content is computed from those that its token sees. Where all tokens of a
prompt see each other the first content is computed from the whole prompt.

In each page table of a sequence the same content is a different number, so that a page of another table reads as wrong.
"""

import functools
import math
from collections.abc import Iterator
from collections.abc import Sequence as Ids

import numpy as np

from jaxengine.request.sequence import Request
from tests.jaxengine.fake_images import attended, beside, seen
from tests.jaxengine.numpy_beam_search import Logprobs, Searched, beam_search

EOS = 0
START = 1  # the decoder's start token, in a model with an encoder
VOCAB = 8
NO_ADAPTER = b""  # a digest that no adapter has

Text = tuple[int, ...]


def content_after(before: int, token: int, encoded: Ids[int] = (), adapter: bytes = NO_ADAPTER) -> int:
    return hash((before, token, *encoded, *adapter))  # a hash of integers is the same in every process


def encoder_contents(encoder_input: Ids[int], adapter: bytes = NO_ADAPTER) -> list[int]:
    return [hash((position, *encoder_input, *adapter)) for position in range(len(encoder_input))]


def in_table(content: int, table: int) -> int:
    """The number that stands for `content` in `table`. Applied twice it returns `content`."""
    return content ^ table


def root_content(salt: bytes, switched: bool = False) -> int:
    """
    Args:
        switched: the text was longer than the rope switch allows when its first position was computed.
    """
    return int.from_bytes(salt, "little") ^ -switched


def whole_content(request: Request) -> int:
    """What the first content is computed from besides, where all tokens of a prompt see each other."""
    return hash((*request.prompt, *(int.from_bytes(each.digest, "little") ^ each.offset for each in request.images)))


def sample(seed: int, content: int) -> int:
    return hash((content, seed, VOCAB)) % VOCAB


@functools.lru_cache(1 << 14)
def logprobs(seed: int, content: int) -> Ids[float]:
    """Of each id, behind a text that ends with `content`. No two are alike."""
    scores = [hash((content, seed, id, VOCAB)) % (1 << 48) / (1 << 46) for id in range(VOCAB)]
    total = math.log(sum(map(math.exp, scores)))
    return [score - total for score in scores]


def likeliest(seed: int, content: int, count: int) -> tuple[tuple[int, float], ...]:
    """`count` ids with their logprobs."""
    row = logprobs(seed, content)
    return tuple((id, row[id]) for id in sorted(range(VOCAB), key=lambda id: -row[id])[:count])


class Reference:
    """What `request` yields when it is served alone.

    tokens: all that it will have, prompt first. Of a beam search just those that it begins with.
    searched: what a beam search finds, and the beams on its way.
    """

    def __init__(
        self,
        request: Request,
        *,
        encoder: bool = False,
        adapter: bytes = NO_ADAPTER,
        rope_switch_length: int = 0,
        whole: bool = False,
        cross: bool = False,
    ) -> None:
        params, search = request.params, request.beam_search
        self.attended = request.images if cross else ()
        self.seen = {} if cross else seen(request.images, request.prompt)
        self.whole = whole_content(request) if whole else 0
        self.salt, self.adapter = request.salt, adapter
        self.longest = rope_switch_length or math.inf  # text that is not switched
        self.encoded = encoder_contents(request.prompt, adapter) if encoder else []
        self.tokens = [START] if encoder else [*request.prompt]
        self.contents = {switched: self._behind([], self.tokens, switched) for switched in (False, True)}
        self.searched: Searched | None = None
        seed, ends = params.seed or 0, {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
        if search is None:
            self._answer(seed, params.max_tokens, ends)
        else:
            self.searched = beam_search(self._table(seed), search, params.max_tokens, sorted(ends))

    def history(self, tokens: Ids[int], rope_length: int) -> list[int]:
        """The contents of a sequence that has `tokens`; of a plain one also those of what is still to come.

        Args:
            rope_length: of the text when its first position was computed.
        """
        switched = rope_length > self.longest
        known = self.contents[switched]
        return known + self._behind(known, tokens[len(known) :], switched)

    def passes(self, tokens: Ids[int]) -> bool:
        """Whether the request has these tokens at some time."""
        if self.searched is None:
            return tokens == self.tokens[: len(tokens)]
        return tuple(tokens) in self.beams(len(tokens) - len(self.tokens))

    def beams(self, generated: int) -> set[Text]:
        """The texts that a search has once it has generated so many tokens of each."""
        assert self.searched is not None
        begin = tuple(self.tokens)
        return {(*begin, *ids) for ids in self.searched.steps[generated - 1]} if generated else {begin}

    def texts(self) -> Iterator[tuple[Text, list[int]]]:
        """Every text that the request has at some time, with its contents, each behind those that it begins with.

        None is switched: a model that does so shares no prefixes.
        """
        contents = self.contents[False]
        for end in range(1, len(self.tokens) + 1):
            yield tuple(self.tokens[:end]), contents[:end]
        before = {tuple(self.tokens): contents}
        for generated in range(1, len(self.searched.steps) + 1 if self.searched else 0):
            texts = self.beams(generated)
            parents = {text: before[text[:-1]] for text in texts}
            before = {text: parent + self._behind(parent, text[-1:], False) for text, parent in parents.items()}
            yield from before.items()

    def _behind(self, contents: list[int], tokens: Ids[int], switched: bool) -> list[int]:
        """The contents of `tokens` behind positions that have `contents`: all positions before them."""
        last, behind = contents[-1] if contents else root_content(self.salt, switched) ^ self.whole, []
        for position, token in enumerate(tokens, len(contents)):
            last = content_after(last, self._as_seen(position, token), self.encoded, self.adapter)
            behind.append(last)
        return behind

    def _as_seen(self, position: int, token: int) -> int:
        return beside(self.seen.get(position, token), attended(self.attended, position))

    def _answer(self, seed: int, max_tokens: int, ends: set[int]) -> None:
        for _ in range(max_tokens):
            token = sample(seed, self.contents[len(self.tokens) > self.longest][-1])
            self.tokens.append(token)
            for switched, contents in self.contents.items():
                contents += self._behind(contents, [token], switched)
            if token in ends:
                return

    def _table(self, seed: int) -> Logprobs:
        """The logprobs of what comes behind the ids that a search has generated."""
        last = {(switched, ()): contents[-1] for switched, contents in self.contents.items()}

        def content(text: Text, switched: bool) -> int:
            if (switched, text) not in last:
                before = content(text[:-1], switched)
                token = self._as_seen(len(self.tokens), text[-1])  # all behind a prompt see the same
                last[switched, text] = content_after(before, token, self.encoded, self.adapter)
            return last[switched, text]

        def logprobs_of(generated: list[int]) -> np.ndarray:
            switched = len(self.tokens) + len(generated) > self.longest
            return np.array(logprobs(seed, content(tuple(generated), switched)))

        return logprobs_of
