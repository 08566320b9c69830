"""The prompts' pages that a mock engine has not forgotten yet."""

from collections import OrderedDict
from collections.abc import Sequence

from jaxengine.request.cached_pages import CachedPages
from jaxengine.rpc.page_keys import Span, page_key, seen_in, short_key


class PrefixCache:
    """The keys of so many pages at most; of those used longest ago a prompt's last page goes first."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages, self.page_size = pages, page_size
        self.keys: OrderedDict[bytes, None] = OrderedDict()  # those used last at the end
        self._changed: set[bytes] = set()

    def read(self, root: bytes, prompt: Sequence[int], images: Sequence[Span] = ()) -> int:
        """Have the pages of `prompt` from now on. How many of the first it had, but not those of the whole prompt."""
        keys = [root]
        for end in range(self.page_size, len(prompt) + 1, self.page_size):
            start = end - self.page_size
            keys.append(page_key(keys[-1], prompt[start:end], seen_in(images, start, end)))
        del keys[0]
        had = next((i for i, key in enumerate(keys) if key not in self.keys), len(keys))
        for key in reversed(keys):
            if key not in self.keys:
                self._changed.add(key)
            self.keys[key] = None
            self.keys.move_to_end(key)
        while len(self.keys) > self.pages:
            self._changed.add(self.keys.popitem(last=False)[0])
        return min(had, (len(prompt) - 1) // self.page_size)

    def take_changes(self) -> CachedPages | None:
        """What has changed since the last call."""
        changed, self._changed = self._changed, set()
        cached = [short_key(key) for key in changed if key in self.keys]
        uncached = [short_key(key) for key in changed if key not in self.keys]
        return CachedPages(False, cached, uncached) if changed else None
