"""The patches of pictures that were asked about lately: each turn of a chat brings its earlier pictures along."""

from collections import OrderedDict


class PatchCache:
    """Patches by what names them (`Sight.images`); those that were used last, as far as there is room. Not thread-safe:
    it belongs to the event loop.

    Args:
        room: bytes.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._patches = OrderedDict[bytes, bytes]()
        self.size = 0  # bytes

    def get(self, digest: bytes) -> bytes | None:
        if digest in self._patches:
            self._patches.move_to_end(digest)
        return self._patches.get(digest)

    def put(self, digest: bytes, patches: bytes) -> None:
        if digest not in self._patches and len(patches) <= self._room:
            self._patches[digest] = patches
            self.size += len(patches)
            self.resize(self._room)

    def resize(self, room: int) -> None:
        """There are `room` bytes from now on. What was used longest ago goes first."""
        self._room = room
        while self.size > max(0, room):
            self.size -= len(self._patches.popitem(last=False)[1])

    def clear(self) -> None:
        self._patches.clear()
        self.size = 0
