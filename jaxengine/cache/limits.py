"""The numbers an engine runs with: how long a request is, which buckets a step has, how many pages tokens take."""

from dataclasses import dataclass

from jaxengine.cache.page_pool import held_pages
from jaxengine.options.table import EngineOptions


@dataclass(frozen=True)
class Limits:
    """The numbers an engine runs with. Buckets are sorted; a step is padded to the next one.

    windows: of each page table of a sequence, positions a token sees at most; 0 = all.
    page_size: tokens of a page. One of a state space is the state of one request, however long.
    """

    max_total_tokens: int
    decode_buckets: tuple[int, ...]  # rows
    mixed_buckets: tuple[int, ...]  # tokens
    encode_buckets: tuple[int, ...] = ()  # tokens of prompts that an encoder reads together
    windows: tuple[int, ...] = (0,)
    page_size: int = EngineOptions.page_size

    @property
    def max_batch_size(self) -> int:
        return self.decode_buckets[-1]

    @property
    def token_budget(self) -> int:
        return self.mixed_buckets[-1]

    @property
    def request_pages(self) -> int:
        """The most pages that one request holds at a time."""
        return self.pages_held(self.max_total_tokens)

    def pages_held(self, tokens: int) -> int:
        """The most pages that a request of `tokens` holds at a time."""
        tables = (held_pages(tokens, self.page_size, window, self.token_budget) for window in self.windows)
        return sum(tables) + self.pages_apart

    def pages_of(self, tokens: int) -> int:
        """Pages of so many tokens that every layer sees."""
        return -(-tokens // self.page_size) * len(self.windows)

    def tokens_of(self, pages: int) -> int:
        """Tokens that fit into `pages`, every layer seeing them; where layers have windows, longer texts do too."""
        return pages // len(self.windows) * self.page_size

    @property
    def pages_apart(self) -> int:
        """Pages more than its tokens need: an encoder's prompt and what follows share none."""
        return 1 if self.encode_buckets else 0

    def rows_of(self, tokens: int) -> int:
        """Rows of a mixed step of `tokens`: a decode bucket, so that both share their sampling graph."""
        return next(rows for rows in self.decode_buckets if rows >= min(tokens, self.max_batch_size))
