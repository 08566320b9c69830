"""The page pool: who holds which page of the KV cache, and which pages hold a prefix that can be found again.

A page is `page_size` consecutive positions in the caches of the layers that share a page table
(`jaxengine/architecture/layer_groups.py`). Page 0 is the sink: padding writes to it, and it is never handed out.

A full page of known tokens can be offered under its table and a key (`jaxengine/rpc/page_keys.py`). The ids are stored
too and compared on a hit. When the last holder of an offered page leaves, the page keeps its content and becomes
reusable: it can be found again until the pool has no blank page left and takes the least recently used reusable one.

No JAX here: this file never sees an array.
"""

from collections import OrderedDict
from collections.abc import Sequence as Ids

from jaxengine.request.cached_pages import CachedPages
from jaxengine.rpc.page_keys import short_key

SINK = 0


class PagePool:
    """Reference-counted pages 1 … total-1, with a prefix index over the full ones.

    Raises:
        ValueError: fewer than two pages, or a page size below one.
    """

    def __init__(self, total: int, page_size: int) -> None:
        if total < 2 or page_size < 1:
            raise ValueError(f"a pool needs two pages of at least one token, got {total} pages of {page_size}")
        self.total = total
        self.page_size = page_size
        self.reset()
        self.lost = False

    def reset(self) -> None:
        """Forget all holders and prefixes: the cache's content is gone."""
        self.references = [0] * self.total
        self.blank: list[int] = list(range(self.total - 1, SINK, -1))  # free pages without an offered prefix
        # Free pages with an offered prefix, least recently used first.
        self.reusable: OrderedDict[int, None] = OrderedDict()
        self.index: dict[tuple[int, bytes], int] = {}  # (table, key) -> page
        self.content: dict[int, tuple[int, bytes, tuple[int, ...]]] = {}  # page -> (table, key, ids)
        self.changed: set[bytes] = set()  # keys of table 0 that have come or gone since `take_changes`
        self.lost = True  # since then

    @property
    def available(self) -> int:
        return len(self.blank) + len(self.reusable)

    @property
    def used(self) -> int:
        return self.total - 1 - self.available

    @property
    def cached(self) -> int:
        """How many free pages still hold a prefix."""
        return len(self.reusable)

    def pages_for(self, tokens: int) -> int:
        """How many pages `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages to write to. Blank pages go first, then the least recently used prefixes.

        Raises:
            ValueError: fewer than `count` are available; nothing is taken.
        """
        if count > self.available:
            raise ValueError(f"{count} pages asked for, {self.available} available")
        return [self._take() for _ in range(count)]

    def find(self, table: int, key: bytes, ids: Ids[int]) -> int | None:
        """The page that is offered for `table` under `key` and holds `ids`, or None."""
        page = self.index.get((table, key))
        return page if page is not None and self.content[page][2] == tuple(ids) else None

    def hold(self, pages: Ids[int]) -> None:
        """Add a holder to each of `pages`, which `find` returned."""
        for page in pages:
            self.reusable.pop(page, None)
            self.references[page] += 1

    def release(self, pages: Ids[int]) -> None:
        """Drop a holder of each page. The last page of a prefix becomes reusable first, so parents outlive children."""
        for page in reversed(pages):
            self.references[page] -= 1
            if self.references[page] == 0:
                if page in self.content:
                    self.reusable[page] = None
                else:
                    self.blank.append(page)

    def commit(self, page: int, table: int, key: bytes, ids: Ids[int]) -> None:
        """Offer a full, computed page of `table` under `key`. The first one offered under a key stays the one found."""
        if (table, key) not in self.index:
            self.index[table, key] = page
            self.content[page] = (table, key, tuple(ids))
            if table == 0:
                self.changed.add(key)

    def forget(self, pages: Ids[int]) -> None:
        """Stop offering `pages`, which are held: their content cannot be trusted, or is about to be overwritten."""
        for page in pages:
            if content := self.content.pop(page, None):
                table, key, _ = content
                del self.index[table, key]
                if table == 0:
                    self.changed.add(key)

    def take_changes(self) -> CachedPages | None:
        """What has become of the index of table 0 since the last call, None if nothing."""
        changed, lost, self.changed, self.lost = self.changed, self.lost, set(), False
        cached = [short_key(key) for key in changed if (0, key) in self.index]
        uncached = [] if lost else [short_key(key) for key in changed if (0, key) not in self.index]
        return CachedPages(lost, cached, uncached) if lost or changed else None

    def _take(self) -> int:
        if self.blank:
            page = self.blank.pop()
        else:
            page, _ = self.reusable.popitem(last=False)
            self.forget([page])
        self.references[page] = 1
        return page
