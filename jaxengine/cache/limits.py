"""The sizes an engine runs with: the longest request, the buckets of a step, and how many pages tokens take."""

import math
from dataclasses import dataclass

from jaxengine.architecture.vision import Vision
from jaxengine.cache.page_need import peak_pages
from jaxengine.model.vision.packing import EncodeShape, encode_shapes
from jaxengine.options.table import EngineOptions

RUN_IMAGES = 8  # that a token may attend to at once: what the device must be told of each row in each step


@dataclass(frozen=True)
class Limits:
    """The sizes an engine runs with. Buckets are sorted; a step is padded to the next larger one.

    windows: for each page table of a sequence, how many positions a token sees at most; 0 = all.
    page_size: tokens of a page. A page of a state space holds the state of one request, however long that is.
    snapshots: of the states behind prefixes, where layers keep some: prompts start from them.
    image_patches: of the largest picture, and of all that one step encodes; 0 where none is seen.
    image_rows: what the device keeps of pictures, in rows of one token each; of one tile, where layers attend to them.
    """

    max_total_tokens: int
    decode_buckets: tuple[int, ...]  # rows
    mixed_buckets: tuple[int, ...]  # tokens
    encode_buckets: tuple[int, ...] = ()  # tokens of the prompts that an encoder reads in one step
    verify_buckets: tuple[int, ...] = ()  # tokens of a step that verifies drafts, a sample each
    draft_tokens: int = 0  # most of one request that a step verifies
    windows: tuple[int, ...] = (0,)
    page_size: int = EngineOptions.page_size
    snapshots: int = 0
    image_patches: int = 0
    image_rows: int = 0

    @property
    def max_batch_size(self) -> int:
        return self.decode_buckets[-1]

    @property
    def state_slots(self) -> int:
        """Of arrays of states: those of requests, the sink, and snapshots."""
        return self.max_batch_size + 1 + self.snapshots

    @property
    def snapshot_slots(self) -> range:
        return range(self.max_batch_size + 1, self.state_slots)

    @property
    def token_budget(self) -> int:
        return self.mixed_buckets[-1]

    @property
    def request_pages(self) -> int:
        """The most pages that one request holds at a time."""
        return self.peak_pages(self.max_total_tokens)

    def peak_pages(self, tokens: int) -> int:
        """The most pages that a request of `tokens` tokens holds at a time."""
        tables = (peak_pages(tokens, self.page_size, window, self.token_budget) for window in self.windows)
        return sum(tables) + self.extra_pages

    def pages_of(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill if every layer keeps all of them."""
        return -(-tokens // self.page_size) * len(self.windows)

    def tokens_of(self, pages: int) -> int:
        """Tokens that fit into `pages` if every layer keeps all of them. With windows longer texts fit."""
        return pages // len(self.windows) * self.page_size

    @property
    def extra_pages(self) -> int:
        """Pages that a request takes beyond its tokens': an encoder's input and the decoder's tokens share no page."""
        return 1 if self.encode_buckets else 0

    def see_shapes(self, vision: Vision | None) -> tuple[EncodeShape, ...]:
        """Of calls that encode pictures, the smallest first."""
        return see_shapes(vision, self.image_patches) if vision else ()

    def image_run(self, vision: Vision) -> int:
        """The most rows of pictures that layers attend to at once; 0 where they stand in for tokens.

        Where pictures have no tiles that see each other a token sees one: the last that has begun.
        """
        most = RUN_IMAGES * vision.tower.tiles if vision.tower.tiles else 1
        return min(self.image_rows, most) if vision.cross else 0

    def rows_of(self, tokens: int) -> int:
        """Rows of a mixed step of `tokens`: a decode bucket, so that both kinds of step share a sampling graph."""
        return next(rows for rows in self.decode_buckets if rows >= min(tokens, self.max_batch_size))


def see_shapes(vision: Vision, patches: int) -> tuple[EncodeShape, ...]:
    """The shapes of calls that encode pictures of up to `patches` together."""
    segments = patches // (math.prod(vision.tile) * max(1, vision.tower.tiles)) if vision.tile else 1
    return encode_shapes(vision, EncodeShape(patches, segments, 1))
