"""The page tables of sequences: what each holds, needs next, gives back and shares.

A sequence has a table for each group of layers (`model/groups.py`), all equally long: entry i is where positions
i·page_size … of its text lie, for those layers. A table whose layers have a window gives back what the window has
passed, and then every table grows as the text is computed instead of all at once.

A prefix is cached where each table has what its layers see behind it: all of it, or what the window reaches. So the
pages behind a window, which were given back first, are rightly the first to be taken for something else.

No JAX here.
"""

from collections.abc import Sequence as Items

from jaxengine.cache.page_pool import SINK, PagePool, held_pages, page_key, root_key
from jaxengine.request.sequence import Sequence, Table


class PageTables:
    """Tables of all sequences over one pool.

    Args:
        windows: of each table, how many positions a token sees at most, its own included; 0 = all.
        token_budget: tokens a step may compute.
        model: names the model and revision in prefix-cache keys.
        prefix_cache: whether prompts may start from cached pages.
    """

    def __init__(
        self, pool: PagePool, windows: Items[int], token_budget: int, model: str = "", prefix_cache: bool = True
    ) -> None:
        self.pool = pool
        self.windows = tuple(windows)
        self.windowed = [  # each window, and its tables
            (window, [table for table, each in enumerate(windows) if each == window])
            for window in sorted({*windows} - {0})
        ]
        self.whole = sum(not window for window in windows)  # tables without one
        self.token_budget = token_budget
        self.model = model
        self.prefix_cache = prefix_cache

    # --- how many -----------------------------------------------------------------------------------------------

    def lacking(self, sequence: Sequence) -> int:
        """Pages it needs beyond those it has for all that is known of it, or with windows for its next step."""
        reach = min(sequence.length, sequence.computed + self.token_budget) if self.windowed else sequence.length
        return len(self.windows) * self.pool.pages_for(max(0, reach - sequence.page_capacity))

    def most(self, sequence: Sequence, tables: Items[Table]) -> int:
        """Pages that `tables` will hold at most at a time while its known tokens are computed."""
        whole, size = self._entries(sequence, sequence.length), self.pool.page_size
        total = whole * self.whole
        for window, alike in self.windowed:
            held = held_pages(sequence.length, size, window, self.token_budget)
            total += len(alike) * min(whole - tables[alike[0]].passed, held)
        return total

    def reserve(self, sequence: Sequence) -> int:
        """What admission keeps back for it, so that nothing need be preempted at once: what its known tokens lack
        yet, and a page for each table if there may be more tokens before it ends.
        """
        more = len(self.windows) if sequence.max_length > sequence.page_capacity else 0
        if not self.windowed:
            return more
        held = sum(len(table.pages) - table.passed for table in sequence.tables)
        return max(more, self.most(sequence, sequence.tables) - held)

    def needs(self, sequence: Sequence, tables: Items[Table]) -> int:
        """Free pages that it takes at most at a time for its known tokens, if it starts from `tables`."""
        shared = sum(self.pool.references[page] > 0 for table in tables for page in table.held)
        return self.most(sequence, tables) - shared

    def least(self, sequence: Sequence) -> int:
        """`needs` is never less: told for each step that someone waits, where `cached` would take milliseconds to find
        again what it found before.
        """
        shares = self._shares(sequence)
        held = sum(self._held(table, sequence) for table in range(self.whole)) if shares else 0
        return self.whole * self._entries(sequence, sequence.length) - held

    def _entries(self, sequence: Sequence, tokens: int) -> int:
        """Of each table: its source's pages come first, and its own tokens start a new one."""
        return self.pool.pages_for(len(sequence.encoder_input)) + self.pool.pages_for(tokens)

    # --- taking and giving --------------------------------------------------------------------------------------

    def start(self, sequence: Sequence, tables: list[Table]) -> None:
        """Give it `tables`, which `cached` found, and the pages for its first step."""
        for table in tables:
            self.pool.hold(table.held)
        sequence.tables = tables
        sequence.offered_pages = len(tables[0].pages)
        sequence.computed = sequence.offered_pages * self.pool.page_size
        sequence.page_capacity = (
            sequence.computed - self.pool.pages_for(len(sequence.encoder_input)) * self.pool.page_size
        )
        self.grow(sequence, self.lacking(sequence))

    def grow(self, sequence: Sequence, count: int) -> None:
        """Add `count` pages, as many to each table. Raises ValueError if fewer are available."""
        pages = self.pool.allocate(count)
        for i, table in enumerate(sequence.tables):
            table.pages += pages[i :: len(sequence.tables)]
        sequence.page_capacity += count // len(sequence.tables) * self.pool.page_size

    def give_back(self, sequence: Sequence, position: int) -> None:
        """Release what no query from `position` on sees: every step that reads it has completed."""
        for window, alike in self.windowed:
            passed, before = self._passed(window, position), sequence.tables[alike[0]].passed
            if passed <= before:
                continue
            for table in (sequence.tables[number] for number in alike):
                self.pool.release(table.pages[before:passed])
                table.pages[before:passed] = [SINK] * (passed - before)
                table.passed = passed

    def release(self, sequence: Sequence) -> None:
        for table in sequence.tables:
            self.pool.release(table.held)
        sequence.tables = []
        sequence.computed = sequence.offered_pages = 0

    def _passed(self, window: int, position: int) -> int:
        """How many pages lie wholly behind what a query at `position` sees."""
        return max(0, position + 1 - window) // self.pool.page_size if window else 0

    # --- sharing ------------------------------------------------------------------------------------------------

    def cached(self, sequence: Sequence) -> list[Table]:
        """Tables that begin with the longest cached prefix, leaving at least one token to compute."""
        whole = (len(sequence.tokens) - 1) // self.pool.page_size
        count = self._longest(sequence, whole) if self._shares(sequence) else 0
        tables = []
        for number, window in enumerate(self.windows):
            passed = self._passed(window, count * self.pool.page_size)
            found = [self.pool.index[number, key] for key in sequence.keys[passed:count]]
            tables.append(Table([SINK] * passed + found, passed))
        return tables

    def _held(self, table: int, sequence: Sequence) -> int:
        """How many of the cached pages that it may start from others hold."""
        index, references, held = self.pool.index, self.pool.references, 0
        for key in sequence.keys:
            page = index.get((table, key))
            if page is None:
                break
            held += references[page] > 0
        return held

    def _shares(self, sequence: Sequence, pages: int | None = None) -> bool:
        """Whether it may start from cached pages; then the keys of its first `pages` are known, or all."""
        shares = self.prefix_cache and not sequence.params.prompt_logprobs
        if shares:
            self._extend_keys(sequence, pages)
        return shares

    def awaits(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether the first page that `other` has yet to offer is one that `sequence` could start from.

        No more of its keys are computed than tell: of a burst there may be thousands to ask.
        """
        i = other.offered_pages
        if i >= min(len(other.keys), (len(sequence.tokens) - 1) // self.pool.page_size):
            return False
        if not self._shares(sequence, i + 1):
            return False
        return sequence.keys[i] == other.keys[i] and (0, other.keys[i]) not in self.pool.index

    def offer(self, sequence: Sequence, written: int) -> None:
        """Let others find the pages that positions below `written` fill, as far as their tokens are known."""
        size = self.pool.page_size
        if written // size <= sequence.offered_pages or sequence.nonfinite or not self.prefix_cache:
            return
        full = min(written, len(sequence.tokens)) // size
        self._extend_keys(sequence)
        for i in range(sequence.offered_pages, full):
            ids = self._ids(sequence, i)
            for number, table in enumerate(sequence.tables):
                self.pool.commit(table.pages[i], number, sequence.keys[i], ids)
        sequence.offered_pages = full

    def forget(self, sequence: Sequence) -> None:
        """Let nobody find its pages: what they contain is not to be trusted."""
        for table in sequence.tables:
            self.pool.forget(table.held)

    def _longest(self, sequence: Sequence, count: int) -> int:
        """The most of its first `count` pages that are cached, as far as what comes next sees them."""
        for table, window in enumerate(self.windows):
            if not window:
                missing = (i for i in range(count) if not self._has(table, sequence, i))
                count = next(missing, count)
        while (gap := self._gap(sequence, count)) is not None:
            count = gap  # a prefix that ends behind the gap would see it too
        return count

    def _gap(self, sequence: Sequence, count: int) -> int | None:
        """A page that is not cached, though windows reach it from behind the first `count`."""
        for window, alike in self.windowed:
            for i in reversed(range(self._passed(window, count * self.pool.page_size), count)):
                if not all(self._has(table, sequence, i) for table in alike):
                    return i
        return None

    def _has(self, table: int, sequence: Sequence, i: int) -> bool:
        return self.pool.find(table, sequence.keys[i], self._ids(sequence, i)) is not None

    def _ids(self, sequence: Sequence, i: int) -> list[int]:
        size = self.pool.page_size
        return sequence.tokens[i * size : (i + 1) * size]

    def _extend_keys(self, sequence: Sequence, pages: int | None = None) -> None:
        for i in range(len(sequence.keys), len(sequence.tokens) // self.pool.page_size if pages is None else pages):
            parent = sequence.keys[-1] if i else root_key(self.model, sequence.request.salt)
            sequence.keys.append(page_key(parent, self._ids(sequence, i)))
