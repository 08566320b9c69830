"""The patches of pictures that were asked about lately: each turn of a chat brings its earlier pictures along."""

from collections import OrderedDict


class PatchCache:
    """Patches by what names them (`Sight.images`); those that were used last, up to `limit` bytes. Not thread-safe: it
    belongs to the event loop.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._patches = OrderedDict[bytes, bytes]()
        self.size = 0  # bytes

    def get(self, digest: bytes) -> bytes | None:
        if digest in self._patches:
            self._patches.move_to_end(digest)
        return self._patches.get(digest)

    def put(self, digest: bytes, patches: bytes) -> None:
        if digest not in self._patches and len(patches) <= self._limit:
            self._patches[digest] = patches
            self.size += len(patches)
            self.shrink(self._limit)

    def shrink(self, most: int) -> None:
        """Forget what was used longest ago, until `most` bytes are left."""
        while self.size > max(0, most):
            self.size -= len(self._patches.popitem(last=False)[1])
