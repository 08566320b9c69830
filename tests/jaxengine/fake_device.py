"""A device made of lists: it runs the scheduler's plans in dispatch order and shows every misuse of a page.

What a position's keys and values are to a real model, a content is here: a number made of the content before it, as
read through the sequence's page table, and of the position's token. A content is rooted in the salt, which no real
model does, so that a page shared across salts reads as wrong. The sampled token is a pure function of the seed and the
last content, hence `alone` knows beforehand all that a request may ever write or return. Where there is an encoder,
each position also reads all of its source's pages, and what a token is to the source depends on the whole source.

In each page table of a sequence the same content is another number, so that a page of the wrong one reads as wrong.
"""

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Request, Sequence

EOS = 0
START = 1  # what a decoder behind an encoder is given
VOCAB = 8
UNWRITTEN, POISON = -1, -2  # contents that no token history implies


def content_after(before: int, token: int, source: Ids[int] = ()) -> int:
    return hash((before, token, *source))  # of integers, hence the same in every process


def source_contents(source: Ids[int]) -> list[int]:
    return [hash((position, *source)) for position in range(len(source))]


def in_table(content: int, table: int) -> int:
    """What stands in `table` for `content`; with it again, the content."""
    return content ^ table


def root_content(salt: bytes) -> int:
    return int.from_bytes(salt, "little")


def sample(seed: int, content: int) -> int:
    return hash((content, seed, VOCAB)) % VOCAB


@dataclass(frozen=True)
class Reference:
    """What a request gives when nothing else is served: all its tokens, prompt first, and each position's content."""

    tokens: list[int]
    contents: list[int]


def alone(request: Request, *, encoder: bool = False) -> Reference:
    tokens, contents, content = [], [], root_content(request.salt)
    source = source_contents(request.prompt) if encoder else []
    for token in [START] if encoder else request.prompt:
        content = content_after(content, token, source)
        tokens.append(token)
        contents.append(content)
    for _ in range(request.params.max_tokens):
        token = sample(request.params.seed or 0, content)
        content = content_after(content, token, source)
        tokens.append(token)
        contents.append(content)
        if token == EOS and not request.params.ignore_eos:
            break
    return Reference(tokens, contents)


@dataclass(frozen=True)
class Result:
    """A row's outcome: the token it drew, if it samples, and whether its numbers were finite."""

    token: int | None
    finite: bool


class FakeDevice:
    """`total` pages of contents, and the last token each slot has sampled."""

    def __init__(self, total: int, page_size: int) -> None:
        self.total = total
        self.page_size = page_size
        self.poisoned: set[int] = set()  # ids of requests whose rows come out as NaN
        self.wipe()

    def wipe(self) -> None:
        """A failed step has destroyed the cache."""
        self.cells = [[UNWRITTEN] * self.page_size for _ in range(self.total)]
        self.last: dict[int, int] = {}

    def run(self, plan: Plan) -> list[Result]:
        for row in plan.encoder_rows:
            self._run_source(row.sequence)
        return [self._run_row(row) for row in plan.rows]

    def read(self, pages: Ids[int], count: int, table: int = 0) -> list[int]:
        """The contents of the first `count` positions of `pages`, which are of `table`."""
        return [in_table(content, table) for page in pages for content in self.cells[page]][:count]

    def tables(self, sequence: Sequence) -> tuple[list[int], list[list[int]]]:
        """The pages of its source, and in each table those of its own tokens."""
        first = -(-len(sequence.encoder_input) // self.page_size)
        return sequence.tables[0].pages[:first], [table.pages[first:] for table in sequence.tables]

    def _run_source(self, sequence: Sequence) -> None:
        finite = sequence.request.id not in self.poisoned
        for position, content in enumerate(source_contents(sequence.encoder_input)):
            page, offset = divmod(position, self.page_size)
            self.cells[sequence.tables[0].pages[page]][offset] = content if finite else POISON

    def _run_row(self, row: Row) -> Result:
        sequence, content = row.sequence, 0
        finite = sequence.request.id not in self.poisoned
        encoder_pages, own = self.tables(sequence)
        source = self.read(encoder_pages, len(sequence.encoder_input))
        for position in range(row.start, row.start + row.count):
            content = content_after(self._before(sequence, position), self._token(sequence, position), source)
            page, offset = divmod(position, self.page_size)
            for number, table in enumerate(own):
                self.cells[table[page]][offset] = in_table(content if finite else POISON, number)
        if not row.samples:
            return Result(None, finite)
        token = sample(sequence.params.seed or 0, content)
        assert sequence.slot is not None
        self.last[sequence.slot] = token
        return Result(token, finite)

    def _before(self, sequence: Sequence, position: int) -> int:
        if position == 0:
            return root_content(sequence.request.salt)
        page, offset = divmod(position - 1, self.page_size)
        tables = enumerate(self.tables(sequence)[1])
        contents = {in_table(self.cells[table[page]][offset], number) for number, table in tables}
        return contents.pop() if len(contents) == 1 else POISON

    def _token(self, sequence: Sequence, position: int) -> int:
        """From the host where it is known there, else what the previous step drew for this slot."""
        if position < len(sequence.tokens):
            return sequence.tokens[position]
        assert sequence.slot is not None
        return self.last[sequence.slot]
