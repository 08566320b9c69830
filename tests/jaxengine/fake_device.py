"""A device made of lists. It runs the scheduler's plans in dispatch order and reveals every misuse of a page.

Its pages hold the contents of `fake_model`. What comes before a position is read through the page table that the device
was told of the sequence's slot, entry by entry, as the runner tells it (`PageTableMirror`). Guesses of a draft are
written as tokens are, so that what is left of a wrong one reads as wrong.
"""

import math
from collections.abc import Iterable
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from jaxengine.cache.page_tables import Fork
from jaxengine.executor.page_table_mirror import PageTableMirror
from jaxengine.request.image import EncodedImage
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.step.upload import NEW, SlotFields
from tests.jaxengine.fake_images import beside, row_value
from tests.jaxengine.fake_model import (
    NO_ADAPTER,
    content_after,
    encoder_contents,
    in_table,
    likeliest,
    root_content,
    sample,
    whole_content,
)

UNWRITTEN, POISON = -1, -2  # contents that no sequence of tokens has
EMPTY = b"nothing was placed here"  # a digest that no adapter has

Pages = list[int]


def digest_of(sequence: Sequence) -> bytes:
    """Of the adapter that the sequence is to have."""
    return sequence.adapter.digest if sequence.adapter else NO_ADAPTER


def first_wrong(sampled: Ids[int], draft: Ids[int]) -> int:
    """The index of the first guess that is wrong, or the number of guesses: up to there the sampled tokens count."""
    return next((i for i, (token, guess) in enumerate(zip(sampled, draft, strict=False)) if token != guess), len(draft))


@dataclass(frozen=True)
class Result:
    """A row's outcome: the tokens it sampled, whether its logits were finite, and for a beam the likeliest tokens."""

    tokens: list[int]
    finite: bool
    top: tuple[tuple[int, float], ...] = ()


class FakeDevice:
    """`total` pages of contents, page tables and the last sampled token of each slot, the stacks of adapters, and rows
    of images.

    Args:
        whole: all tokens of a prompt see each other.
        run: the most rows that layers attend to at once; 0 = none does, and rows stand in for tokens.
        states: whether layers keep states, each of which stands for all tokens up to the last: a content.
    """

    def __init__(
        self,
        total: int,
        page_size: int,
        slots: int,
        rope_switch_length: int = 0,
        *,
        whole: bool = False,
        run: int = 0,
        states: bool = False,
    ) -> None:
        self.total = total
        self.page_size = page_size
        self.slots = slots
        self.longest = rope_switch_length or math.inf  # text that is not switched
        self.whole, self.run_rows, self.keeps_states = whole, run, states
        self.fields = SlotFields(slots, run)
        self.mirror = PageTableMirror(slots)
        self.poisoned: set[int] = set()  # ids of requests whose rows come out as NaN
        self.wipe()

    def wipe(self) -> None:
        """A failed step has destroyed the cache, the page tables and the stacks."""
        self.cells = [[UNWRITTEN] * self.page_size for _ in range(self.total)]
        self.table: dict[int, Pages] = {}  # by row, each with the entries that were uploaded
        self.rope_length: dict[int, int] = {}  # by slot, as of when a sequence took it
        self.last: dict[int, int] = {}
        self.states: dict[int | None, int] = {}  # by slot
        self.stacks: dict[int, bytes] = {}  # digests by slot
        self.image_rows: dict[int, int] = {}
        self.mirror.reset()

    def run(self, plan: Plan) -> list[Result]:
        for slot, adapter in plan.placements:
            self.stacks[slot] = adapter.digest
        for sequence in plan.admitted:
            assert sequence.slot is not None
            self.mirror.clear(sequence.slot)
            self.rope_length[sequence.slot] = sequence.rope_length
            self.fields.fill(sequence)
        self._copy_states(plan.restores)
        for sequence in plan.sees_others:
            self.fields.forget_seen(sequence)
        self._encode(plan)
        self._upload(plan.encoder_rows)
        for row in plan.encoder_rows:
            self._run_encoder(row.sequence)
        self._upload(plan.rows)
        results = [self._run_row(row, plan.decode_only) for row in plan.rows]
        self._copy_states((each.sequence.slot, each.snapshot) for each in plan.saves)
        return results

    def _copy_states(self, copies: Iterable[tuple[int | None, int | None]]) -> None:
        for source, target in copies:
            self.states[target] = self.states[source]

    def rows_of(self, image: EncodedImage) -> list[int]:
        """What the device has in the rows of `image`."""
        return [self.image_rows.get(row, UNWRITTEN) for row in image.rows.tolist()]

    def is_bad(self, image: EncodedImage) -> bool:
        """Whether it came out as NaN."""
        return POISON in self.rows_of(image)

    def _encode(self, plan: Plan) -> None:
        """The image of a request that is poisoned comes out as NaN, and so do the rows of all that read it."""
        bad = {each.image for row in plan.rows if self._is_poisoned(row.sequence) for each in row.sequence.images}
        for image, rows in plan.encodes:
            for number, row in enumerate(rows.tolist()):
                self.image_rows[row] = POISON if image in bad else row_value(image.digest, number)

    def _is_poisoned(self, sequence: Sequence) -> bool:
        return sequence.request.id in self.poisoned

    def regrow(self, forks: Iterable[Fork]) -> None:
        """As `Runner.regrow`: sequences have become copies of others."""
        for fork in forks:
            assert fork.child.slot is not None
            self.mirror.rewind(fork.child.slot, fork.kept)
            self.states[fork.child.slot] = self.states[fork.parent.slot]
        for source, target in [copy for fork in forks for copy in fork.copies]:
            self.cells[target] = [*self.cells[source]]

    def read(self, pages: Ids[int], count: int, table: int = 0) -> list[int]:
        """The contents of the first `count` positions of `pages`, which belong to `table`."""
        return [in_table(content, table) for page in pages for content in self.cells[page]][:count]

    def tables(self, sequence: Sequence) -> tuple[Pages, list[Pages]]:
        """The pages of the encoder input, and of each table those of the sequence's own tokens; to the host."""
        return self._divided(sequence, [table.pages for table in sequence.tables])

    def adapter(self, sequence: Sequence) -> bytes:
        """The digest of what lies in the sequence's slot of the stacks."""
        return NO_ADAPTER if sequence.adapter_slot is None else self.stacks.get(sequence.adapter_slot, EMPTY)

    def _divided(self, sequence: Sequence, tables: list[Pages]) -> tuple[Pages, list[Pages]]:
        first = -(-len(sequence.encoder_input) // self.page_size)
        return tables[0][:first], [table[first:] for table in tables]

    def _upload(self, rows: list[Row]) -> None:
        for table_row, column, page in self.mirror.take_missing(rows):
            entries = self.table.setdefault(table_row, [])
            entries += [0] * (column + 1 - len(entries))
            entries[column] = page

    def _uploaded(self, sequence: Sequence) -> tuple[Pages, list[Pages]]:
        """As `tables`, but what the device has."""
        assert sequence.slot is not None
        rows = range(sequence.slot, len(sequence.tables) * (self.slots + 1), self.slots + 1)
        return self._divided(sequence, [self.table[row] for row in rows])

    def _run_encoder(self, sequence: Sequence) -> None:
        finite, adapter = sequence.request.id not in self.poisoned, self.adapter(sequence)
        pages, _ = self._uploaded(sequence)
        for position, content in enumerate(encoder_contents(sequence.encoder_input, adapter)):
            page, offset = divmod(position, self.page_size)
            self.cells[pages[page]][offset] = content if finite else POISON

    def _seen(self, row: Row, decodes: bool) -> list[list[int]]:
        """What the device has in the rows that each token of `row` sees, or that stands in for it."""
        if not self.run_rows:
            return [[] if i < 0 else [self.image_rows.get(i, UNWRITTEN)] for i in row.image_rows.tolist()]
        fields, slot = self.fields, row.sequence.slot
        assert slot is not None
        known = decodes and fields.seen[slot] != NEW  # as `Upload` has it
        seen = fields.seen[slot : slot + 1] if known else fields.see(row.sequence, row.start, row.count)
        run = [self.image_rows.get(i, UNWRITTEN) for i in fields.runs[slot].tolist()]
        return [run[:count] for count in seen.tolist()]

    def _as_seen(self, token: int, rows: list[int]) -> int:
        if self.run_rows:
            return beside(token, rows)
        return rows[0] if rows else token

    def _run_row(self, row: Row, decodes: bool) -> Result:
        sequence, seed = row.sequence, row.sequence.params.seed or 0
        seen = self._seen(row, decodes)
        if any(POISON in rows for rows in seen):
            self.poisoned.add(sequence.request.id)
        finite, adapter = not self._is_poisoned(sequence), self.adapter(sequence)
        encoder_pages, own = self._uploaded(sequence)
        encoded = self.read(encoder_pages, len(sequence.encoder_input))
        known, sampled, content, states = row.ids, [], 0, self.states.get(sequence.slot)
        for position in range(row.start, row.start + row.count):
            token = known.pop(0) if known else self._last(sequence)
            token = self._as_seen(token, seen[position - row.start])
            before = self._before(sequence, own, position)
            if self.keeps_states and position and states != before:
                before = UNWRITTEN
            content = content_after(before, token, encoded, adapter)
            states = content if finite else POISON
            if position < row.start + row.count - len(row.draft):  # no state is kept of a guess
                self.states[sequence.slot] = states
            sampled.append(sample(seed, content))
            page, offset = divmod(position, self.page_size)
            for number, table in enumerate(own):
                self.cells[table[page]][offset] = in_table(content if finite else POISON, number)
        sampled = sampled[row.count - row.samples :]
        if sampled:
            assert sequence.slot is not None
            self.last[sequence.slot] = sampled[first_wrong(sampled, row.draft)]
        top = likeliest(seed, content, sequence.listed) if sampled and sequence.listed else ()
        return Result(sampled, finite, top)

    def _before(self, sequence: Sequence, own: list[Pages], position: int) -> int:
        if position == 0:
            assert sequence.slot is not None
            root = root_content(sequence.request.salt, self.rope_length[sequence.slot] > self.longest)
            return root ^ whole_content(sequence.request) if self.whole else root
        page, offset = divmod(position - 1, self.page_size)
        contents = {in_table(self.cells[table[page]][offset], number) for number, table in enumerate(own)}
        return contents.pop() if len(contents) == 1 else POISON

    def _last(self, sequence: Sequence) -> int:
        """The token last sampled in the sequence's slot, for one that the host does not know."""
        assert sequence.slot is not None
        return self.last[sequence.slot]
