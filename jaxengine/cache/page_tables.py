"""The page tables of sequences: which pages each sequence holds, takes next, releases and shares.

A sequence has one page table for each group of layers (`jaxengine/architecture/layer_groups.py`). All of its tables
have the same length: entry i is the page of positions i·page_size … for the layers of that group. Where layers have a
window, a table releases the pages behind it; all tables then grow as the text is computed instead of all at once.

A prefix is cached where each table still has the pages that its layers see from the prefix's end: all pages, or those
that the window reaches. Pages behind a window are released early, so they are rightly the first to be reused. Where
layers keep states, there must be a snapshot too (`snapshots.py`).

No JAX here.
"""

import itertools
import operator
from collections.abc import Sequence as Items
from typing import NamedTuple

from jaxengine.cache.page_need import PageNeed, peak_pages
from jaxengine.cache.page_pool import SINK, PagePool
from jaxengine.cache.snapshots import Snapshots
from jaxengine.request.sequence import PageTable, Sequence
from jaxengine.rpc.page_keys import page_key, root_key, seen_in, whole_key

NO_PAGES = PageNeed(0, 0, 0)
KEYS_AT_ONCE = 512  # of a waiting request, 1 ms: of a burst a step looks at hundreds, each with the same long document


class Fork(NamedTuple):
    """A sequence, `child`, that has become a copy of another, `parent`.

    kept: how many of the first entries of its tables are as they were.
    copies: of what pages to what pages the device must copy.
    """

    parent: Sequence
    child: Sequence
    kept: int
    copies: list[tuple[int, int]]


class PageTables:
    """The tables of all sequences, over one pool.

    Args:
        windows: for each table of a sequence, how many positions a token sees at most, its own included; 0 = all.
        token_budget: tokens that a step may compute.
        model: its `cache_name`.
        prefix_cache: whether prompts may start from cached pages.
        whole_prompts: only from those of the same prompt, because all of its tokens see each other, windows or not. The
            first pages of one that is longer than a window are not kept, so it starts from none.
        snapshots: of states, where layers keep some.
    """

    def __init__(
        self,
        pool: PagePool,
        windows: Items[int],
        token_budget: int,
        model: str = "",
        prefix_cache: bool = True,
        whole_prompts: bool = False,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.pool = pool
        self.windows = tuple(windows)
        self.windowed = [  # each window, and the numbers of the tables that have it
            (window, [number for number, each in enumerate(windows) if each == window])
            for window in sorted({*windows} - {0})
        ]
        self.growth = PageNeed(0, 0, len(windows))  # of a sequence that has all pages for now, but may grow
        self.unwindowed = sum(not window for window in windows)  # how many tables have no window: they come first
        self.token_budget = token_budget
        self.model = model
        self.prefix_cache = prefix_cache
        self.whole_prompts = whole_prompts
        self.snapshots = snapshots

    def reset(self) -> None:
        """The content of the caches is gone, and no sequence holds any of it."""
        self.pool.reset()
        if self.snapshots is not None:
            self.snapshots.reset()

    # --- counting -------------------------------------------------------------------------------------------------

    def need(self, sequence: Sequence) -> PageNeed:
        """The free pages that a sequence with a slot takes beyond those it holds.

        Admission asks for it of every running sequence in each step, so the common case comes first and is cheap.
        """
        may_grow = sequence.max_length > sequence.page_capacity
        if not self.windowed and sequence.length <= sequence.page_capacity:
            return self.growth if may_grow else NO_PAGES
        next_step = known_tokens = self._missing(sequence, sequence.length)
        if self.windowed:
            next_step = self._missing(sequence, min(sequence.length, sequence.computed + self.token_budget))
            held = sum(len(table.pages) - table.released for table in sequence.tables)
            peak = self._peak(sequence, sequence.tables)
            known_tokens = max(next_step, peak - held)  # it may hold more, for guesses that were wrong
        return PageNeed(next_step, known_tokens, max(known_tokens, len(self.windows) if may_grow else 0))

    def need_to_start(self, sequence: Sequence, prefix: Items[PageTable]) -> int:
        """Free pages that a waiting sequence takes at most at a time for its known tokens, starting from `prefix`."""
        shared = sum(self.pool.references[page] > 0 for table in prefix for page in table.held)
        return self._peak(sequence, prefix) - shared

    def least_to_start(self, sequence: Sequence) -> int:
        """A cheap lower bound of `need_to_start`, whatever the cached prefix.

        It is asked for in every step in which a sequence waits, where `cached_prefix` would walk the index for
        milliseconds to find what it found the step before.
        """
        keys = sequence.prefix_keys if self.may_share(sequence) else []
        if self.snapshots is not None:
            keys = keys[: self._longest_saved(sequence, len(keys))]
        shared = sum(self._shared_pages(number, keys) for number in range(self.unwindowed))
        return self.unwindowed * self._entries(sequence, sequence.length) - shared

    def need_of_beam(self, beam: Sequence) -> int:
        """Free pages that a waiting beam takes beside the first of its search, as `need_to_start`."""
        return len(self.windows) if beam.asleep else self.need_to_start(beam, self.cached_prefix(beam))

    def _missing(self, sequence: Sequence, length: int) -> int:
        """Pages that a sequence lacks to hold `length` tokens, in all of its tables."""
        tokens = length - sequence.page_capacity
        return len(self.windows) * self.pool.pages_for(tokens) if tokens > 0 else 0

    def _peak(self, sequence: Sequence, tables: Items[PageTable]) -> int:
        """The most pages that `tables` hold at a time while the known tokens of `sequence` are computed."""
        entries, size = self._entries(sequence, sequence.length), self.pool.page_size
        total = entries * self.unwindowed
        for window, numbers in self.windowed:
            peak = peak_pages(sequence.length, size, window, self.token_budget)
            total += len(numbers) * min(entries - tables[numbers[0]].released, peak)
        return total

    def _entries(self, sequence: Sequence, tokens: int) -> int:
        """Length of a table of `tokens` tokens. The encoder input's pages come first, the tokens begin a new page."""
        return self.pool.pages_for(len(sequence.encoder_input)) + self.pool.pages_for(tokens)

    # --- taking and releasing -------------------------------------------------------------------------------------

    def start(self, sequence: Sequence, prefix: list[PageTable]) -> None:
        """Give `sequence` the tables of `prefix`, which `cached_prefix` found, and the pages for its first step; and
        likewise the other beams of its search.
        """
        beside = [beam for beam in sequence.members[1:] if beam.asleep or beam.encoder_input]
        others = [beam for beam in sequence.members[1:] if beam not in beside]
        for each, found in zip([sequence, *others], [prefix, *map(self.cached_prefix, others)], strict=True):
            self._adopt(each, found)
        for each in (sequence, *others):  # now: pages that one takes may hold a prefix that nobody has adopted
            self.grow(each, self.need(each).next_step)
        for beam in beside:
            self._start_beside(sequence, beam)

    def _adopt(self, sequence: Sequence, prefix: list[PageTable]) -> None:
        """Give `sequence` the tables of `prefix`."""
        for table in prefix:
            self.pool.hold(table.held)
        size = self.pool.page_size
        sequence.tables = prefix
        sequence.offered_pages = len(prefix[0].pages)
        sequence.computed = sequence.offered_pages * size
        sequence.page_capacity = sequence.computed - self.pool.pages_for(len(sequence.encoder_input)) * size
        if self.snapshots is not None and sequence.computed:
            sequence.snapshot = self.snapshots.use(sequence.prefix_keys[sequence.offered_pages - 1])

    def _start_beside(self, first: Sequence, beam: Sequence) -> None:
        """Give `beam` the pages of the encoder input that `first` has, and those for its first step. One that is asleep
        gets just the page in which it will write on.
        """
        shared = self.pool.pages_for(len(beam.encoder_input))
        beam.tables = [PageTable(table.pages[:shared]) for table in first.tables]
        for table in beam.tables:
            self.pool.hold(table.pages)
        beam.page_capacity = 0
        self.grow(beam, len(self.windows) if beam.asleep else self.need(beam).next_step)

    def grow(self, sequence: Sequence, count: int) -> None:
        """Add `count` pages, equally many to each table. Raises ValueError if fewer are available."""
        pages = self.pool.allocate(count)
        for number, table in enumerate(sequence.tables):
            table.pages += pages[number :: len(sequence.tables)]
        sequence.page_capacity += count // len(sequence.tables) * self.pool.page_size

    def grow_for_draft(self, sequence: Sequence, count: int, spare: int) -> int:
        """Of `count` guesses behind the known tokens of `sequence`, how many have pages, which are taken if they can be
        had without those that the other running sequences, `spare` in all, may need next.
        """
        missing = self._missing(sequence, sequence.length + count)
        if missing and missing <= self.pool.available - spare * len(self.windows):
            self.grow(sequence, missing)
        return min(count, sequence.page_capacity - sequence.length)

    def fork(self, parent: Sequence, child: Sequence) -> Fork:
        """Give `child` the pages of `parent`, of which it will be a copy: its full ones are shared. What the last one
        holds must be copied to the page that `child` has in this place.
        """
        size = self.pool.page_size
        source = self.pool.pages_for(len(parent.encoder_input))
        full, own = source + parent.computed // size, source + child.computed // size
        kept, copies = [], []
        for old, new in zip(child.tables, parent.tables, strict=True):
            pages = new.pages[:full] + old.pages[own:]
            same = _common(old.pages, pages)  # most of them, and so neither held nor released
            self.pool.hold(pages[max(same, new.released) : full])
            self.pool.release(old.pages[max(same, old.released) : own])
            if parent.computed % size:
                copies.append((new.pages[full], pages[full]))
            old.pages, old.released = pages, new.released
            kept.append(same)
        child.page_capacity = (len(child.tables[0].pages) - source) * size
        return Fork(parent, child, min(kept), copies)

    def release_behind_windows(self, sequence: Sequence, position: int) -> None:
        """Release the pages that no query from `position` on sees. Every step that reads them has completed."""
        for window, numbers in self.windowed:
            behind, released = self._pages_behind(window, position), sequence.tables[numbers[0]].released
            if behind <= released:
                continue
            for table in (sequence.tables[number] for number in numbers):
                self.pool.release(table.pages[released:behind])
                table.pages[released:behind] = [SINK] * (behind - released)
                table.released = behind

    def release(self, sequence: Sequence) -> None:
        """Release all pages of `sequence`: nothing of it counts as computed any more."""
        for table in sequence.tables:
            self.pool.release(table.held)
        sequence.tables = []
        sequence.computed = sequence.offered_pages = 0
        sequence.snapshot, sequence.saves = None, []

    def _pages_behind(self, window: int, position: int) -> int:
        """How many pages lie wholly behind the window of a query at `position`."""
        return max(0, position + 1 - window) // self.pool.page_size if window else 0

    # --- sharing --------------------------------------------------------------------------------------------------

    def cached_prefix(self, sequence: Sequence) -> list[PageTable]:
        """Tables of the longest cached prefix of `sequence` that leaves at least one token to compute."""
        count = self.cached_pages(sequence)
        if self.snapshots is not None:
            count = self._longest_saved(sequence, count)
        tables = []
        for number, window in enumerate(self.windows):
            behind = self._pages_behind(window, count * self.pool.page_size)
            found = [self.pool.index[number, key] for key in sequence.prefix_keys[behind:count]]
            tables.append(PageTable([SINK] * behind + found, behind))
        return tables

    def cached_pages(self, sequence: Sequence) -> int:
        """How many pages the longest prefix has that leaves at least one token to compute, whatever snapshots it
        takes to start behind it.
        """
        return self._longest_cached(sequence, self.startable(sequence)) if self.may_share(sequence) else 0

    def startable(self, sequence: Sequence) -> int:
        """How many full pages a prefix of `sequence` has at most, so that one token is left to compute."""
        return (len(sequence.tokens) - 1) // self.pool.page_size

    def waits_for_prefix(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether the next page that `other` will offer is one that `sequence` could start from; where layers keep
        states, the next snapshot.

        Of a burst of requests thousands may ask, so no more prefix keys are computed than the answer takes.
        """
        if self.snapshots is not None:
            return any(self._waits_for_snapshot(sequence, other, at, self.snapshots) for at in other.saves)
        i = other.offered_pages
        if i >= min(len(other.prefix_keys), self.startable(sequence)):
            return False
        if not self.may_share(sequence, i + 1):
            return False
        return sequence.prefix_keys[i] == other.prefix_keys[i] and (0, other.prefix_keys[i]) not in self.pool.index

    def _waits_for_snapshot(self, sequence: Sequence, other: Sequence, at: int, snapshots: Snapshots) -> bool:
        """Whether `sequence` could start from what `other` saves `at` this position, and from no more already: as far
        as their keys are known.
        """
        pages, startable, keys = at // self.pool.page_size, self.startable(sequence), sequence.prefix_keys
        if pages > startable or not self.may_share(sequence, 0) or not _alike(keys, other.prefix_keys, pages):
            return False
        self._extend_prefix_keys(sequence, min(startable, len(keys) + KEYS_AT_ONCE))
        if not _alike(keys, other.prefix_keys, pages):
            return False
        return not any(key in snapshots and (0, key) in self.pool.index for key in keys[pages - 1 : startable])

    def offer(self, sequence: Sequence, written: int) -> None:
        """Offer the full pages below position `written` to other requests, if the host knows all their tokens."""
        size = self.pool.page_size
        if written // size <= sequence.offered_pages or sequence.nonfinite or not self.prefix_cache:
            return
        full = min(written, sequence.shareable) // size
        self._extend_prefix_keys(sequence)
        for i in range(sequence.offered_pages, full):
            ids = self._page_ids(sequence, i)
            for number, table in enumerate(sequence.tables):
                self.pool.commit(table.pages[i], number, sequence.prefix_keys[i], ids)
        sequence.offered_pages = full

    def forget(self, sequence: Sequence) -> None:
        """Stop offering the pages of `sequence`: their content cannot be trusted."""
        for table in sequence.tables:
            self.pool.forget(table.held)
        if self.snapshots is not None:
            self.snapshots.forget(sequence.prefix_keys)

    def may_share(self, sequence: Sequence, pages: int | None = None) -> bool:
        """Whether `sequence` may start from cached pages. If so, the keys of its first `pages`, or all, are known."""
        may_share = self.prefix_cache and not sequence.reads_whole_prompt
        if self.whole_prompts and self.windowed:
            may_share &= sequence.prompt_length <= self.windowed[0][0]
        if may_share:
            self._extend_prefix_keys(sequence, pages)
        return may_share

    def _shared_pages(self, number: int, keys: Items[bytes]) -> int:
        """How many pages of the cached prefix with these `keys` in table `number` are held by others."""
        index, references, shared = self.pool.index, self.pool.references, 0
        for key in keys:
            page = index.get((number, key))
            if page is None:
                break
            shared += references[page] > 0
        return shared

    def _longest_cached(self, sequence: Sequence, count: int) -> int:
        """How many of the first `count` pages make the longest prefix whose visible pages are all cached."""
        for number, window in enumerate(self.windows):
            if not window:
                missing = (i for i in range(count) if not self._is_cached(number, sequence, i))
                count = next(missing, count)
        while (gap := self._gap_in_window(sequence, count)) is not None:
            count = gap  # a prefix that ends after the gap would see it too
        return count

    def _longest_saved(self, sequence: Sequence, count: int) -> int:
        """How many of the first `count` pages make the longest prefix with a snapshot, if they are cached."""
        assert self.snapshots is not None
        for pages in range(count, 0, -1):
            if sequence.prefix_keys[pages - 1] in self.snapshots and self._gap_in_window(sequence, pages) is None:
                return pages
        return 0

    def _gap_in_window(self, sequence: Sequence, count: int) -> int | None:
        """The last page that is not cached although a window reaches it from the end of the first `count` pages."""
        for window, numbers in self.windowed:
            for i in reversed(range(self._pages_behind(window, count * self.pool.page_size), count)):
                if not all(self._is_cached(number, sequence, i) for number in numbers):
                    return i
        return None

    def _is_cached(self, number: int, sequence: Sequence, i: int) -> bool:
        return self.pool.find(number, sequence.prefix_keys[i], self._page_ids(sequence, i)) is not None

    def _page_ids(self, sequence: Sequence, i: int) -> list[int]:
        """The token ids of page i."""
        size = self.pool.page_size
        return sequence.tokens[i * size : (i + 1) * size]

    def _extend_prefix_keys(self, sequence: Sequence, pages: int | None = None) -> None:
        """Compute the keys of the first `pages` pages of `sequence`, or of all full ones."""
        count = len(sequence.tokens) // self.pool.page_size if pages is None else pages
        for i in range(len(sequence.prefix_keys), count):
            parent = sequence.prefix_keys[-1] if i else self._root(sequence)
            seen = seen_in(sequence.request.images, i * self.pool.page_size, (i + 1) * self.pool.page_size)
            sequence.prefix_keys.append(page_key(parent, self._page_ids(sequence, i), seen))

    def _root(self, sequence: Sequence) -> bytes:
        root, request = root_key(self.model, *sequence.scope), sequence.request
        return whole_key(root, request.prompt, request.images) if self.whole_prompts else root


def _common(one: Items[int], other: Items[int]) -> int:
    """How many of their first entries are the same."""
    differ = itertools.compress(itertools.count(), map(operator.ne, one, other))
    return next(differ, min(len(one), len(other)))


def _alike(one: Items[bytes], other: Items[bytes], count: int) -> bool:
    """Whether the first `count` keys of both are the same, as far as those of `one` are known. A key stands for all up
    to its own.
    """
    known = min(len(one), count)
    return known == 0 or one[known - 1] == other[known - 1]
