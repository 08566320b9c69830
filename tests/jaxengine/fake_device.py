"""A device made of lists. It runs the scheduler's plans in dispatch order and reveals every misuse of a page.

Instead of keys and values a position has a content: a number computed from the content before it, as read through the
sequence's page table, and from the position's token. The first content is computed from the salt, unlike in a real
model, so that a page shared across salts reads as wrong. The sampled token is a pure function of the seed and the last
content, so `alone` knows beforehand everything that a request may write or return. Guesses of a draft are written as
tokens are, so that what is left of a wrong one reads as wrong. With an encoder, each position also
reads all pages of the encoder input, and an encoder content depends on the whole input. Every content depends on the
adapter that lies in its sequence's slot of the stacks.

In each page table of a sequence the same content is a different number, so that a page of another table reads as wrong.
"""

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Request, Sequence

EOS = 0
START = 1  # the decoder's start token, in a model with an encoder
VOCAB = 8
UNWRITTEN, POISON = -1, -2  # contents that no sequence of tokens has
NO_ADAPTER, EMPTY = b"", b"nothing was placed here"  # digests that no adapter has


def content_after(before: int, token: int, encoded: Ids[int] = (), adapter: bytes = NO_ADAPTER) -> int:
    return hash((before, token, *encoded, *adapter))  # a hash of integers is the same in every process


def encoder_contents(encoder_input: Ids[int], adapter: bytes = NO_ADAPTER) -> list[int]:
    return [hash((position, *encoder_input, *adapter)) for position in range(len(encoder_input))]


def digest_of(sequence: Sequence) -> bytes:
    """Of the adapter that the sequence is to have."""
    return sequence.adapter.digest if sequence.adapter else NO_ADAPTER


def in_table(content: int, table: int) -> int:
    """The number that stands for `content` in `table`. Applied twice it returns `content`."""
    return content ^ table


def root_content(salt: bytes) -> int:
    return int.from_bytes(salt, "little")


def sample(seed: int, content: int) -> int:
    return hash((content, seed, VOCAB)) % VOCAB


@dataclass(frozen=True)
class Reference:
    """What a request yields when it is served alone: all its tokens, prompt first, and each position's content."""

    tokens: list[int]
    contents: list[int]


def alone(request: Request, *, encoder: bool = False, adapter: bytes = NO_ADAPTER) -> Reference:
    tokens, contents, content = [], [], root_content(request.salt)
    encoded = encoder_contents(request.prompt, adapter) if encoder else []
    for token in [START] if encoder else request.prompt:
        content = content_after(content, token, encoded, adapter)
        tokens.append(token)
        contents.append(content)
    for _ in range(request.params.max_tokens):
        token = sample(request.params.seed or 0, content)
        content = content_after(content, token, encoded, adapter)
        tokens.append(token)
        contents.append(content)
        if token == EOS and not request.params.ignore_eos:
            break
    return Reference(tokens, contents)


def first_wrong(sampled: Ids[int], draft: Ids[int]) -> int:
    """The index of the first guess that is wrong, or the number of guesses: up to there the sampled tokens count."""
    return next((i for i, (token, guess) in enumerate(zip(sampled, draft, strict=False)) if token != guess), len(draft))


@dataclass(frozen=True)
class Result:
    """A row's outcome: the tokens it sampled, and whether its logits were finite."""

    tokens: list[int]
    finite: bool


class FakeDevice:
    """`total` pages of contents, the last token each slot has sampled, and the stacks of adapters."""

    def __init__(self, total: int, page_size: int) -> None:
        self.total = total
        self.page_size = page_size
        self.poisoned: set[int] = set()  # ids of requests whose rows come out as NaN
        self.wipe()

    def wipe(self) -> None:
        """A failed step has destroyed the cache and the stacks."""
        self.cells = [[UNWRITTEN] * self.page_size for _ in range(self.total)]
        self.last: dict[int, int] = {}
        self.stacks: dict[int, bytes] = {}  # digests by slot

    def run(self, plan: Plan) -> list[Result]:
        for slot, adapter in plan.placements:
            self.stacks[slot] = adapter.digest
        for row in plan.encoder_rows:
            self._run_encoder(row.sequence)
        return [self._run_row(row) for row in plan.rows]

    def read(self, pages: Ids[int], count: int, table: int = 0) -> list[int]:
        """The contents of the first `count` positions of `pages`, which belong to `table`."""
        return [in_table(content, table) for page in pages for content in self.cells[page]][:count]

    def tables(self, sequence: Sequence) -> tuple[list[int], list[list[int]]]:
        """The pages of the encoder input, and of each table those of the sequence's own tokens."""
        first = -(-len(sequence.encoder_input) // self.page_size)
        return sequence.tables[0].pages[:first], [table.pages[first:] for table in sequence.tables]

    def adapter(self, sequence: Sequence) -> bytes:
        """The digest of what lies in the sequence's slot of the stacks."""
        return NO_ADAPTER if sequence.adapter_slot is None else self.stacks.get(sequence.adapter_slot, EMPTY)

    def _run_encoder(self, sequence: Sequence) -> None:
        finite, adapter = sequence.request.id not in self.poisoned, self.adapter(sequence)
        for position, content in enumerate(encoder_contents(sequence.encoder_input, adapter)):
            page, offset = divmod(position, self.page_size)
            self.cells[sequence.tables[0].pages[page]][offset] = content if finite else POISON

    def _run_row(self, row: Row) -> Result:
        sequence = row.sequence
        finite, adapter = sequence.request.id not in self.poisoned, self.adapter(sequence)
        encoder_pages, own = self.tables(sequence)
        encoded = self.read(encoder_pages, len(sequence.encoder_input))
        known, sampled = row.ids, []
        for position in range(row.start, row.start + row.count):
            token = known.pop(0) if known else self._last(sequence)
            content = content_after(self._before(sequence, position), token, encoded, adapter)
            sampled.append(sample(sequence.params.seed or 0, content))
            page, offset = divmod(position, self.page_size)
            for number, table in enumerate(own):
                self.cells[table[page]][offset] = in_table(content if finite else POISON, number)
        sampled = sampled[row.count - row.samples :]
        if sampled:
            assert sequence.slot is not None
            self.last[sequence.slot] = sampled[first_wrong(sampled, row.draft)]
        return Result(sampled, finite)

    def _before(self, sequence: Sequence, position: int) -> int:
        if position == 0:
            return root_content(sequence.request.salt)
        page, offset = divmod(position - 1, self.page_size)
        tables = enumerate(self.tables(sequence)[1])
        contents = {in_table(self.cells[table[page]][offset], number) for number, table in tables}
        return contents.pop() if len(contents) == 1 else POISON

    def _last(self, sequence: Sequence) -> int:
        """The token last sampled in the sequence's slot, for one that the host does not know."""
        assert sequence.slot is not None
        return self.last[sequence.slot]
