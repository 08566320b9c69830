"""What XLA's allocator for GPUs does with a device's memory, in brief. Source: tsl/framework/bfc_allocator.cc."""

from dataclasses import dataclass

PIECE = 256  # bytes; sizes are multiples of it


@dataclass
class Piece:
    start: int
    size: int
    used: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        """By power of two, size and address: the first that is large enough is taken."""
        return (self.size // PIECE).bit_length(), self.size, self.start


class FreePieces:
    """Memory of `size` bytes, all of it free."""

    def __init__(self, size: int) -> None:
        self.pieces = [Piece(0, size)]

    def take(self, size: int) -> int:
        """The address of an array of `size` bytes."""
        size = max(1, -(-size // PIECE)) * PIECE
        found = min((each for each in self.pieces if not each.used and each.size >= size), key=lambda each: each.order)
        if found.size >= 2 * size:
            self.pieces.insert(self.pieces.index(found) + 1, Piece(found.start + size, found.size - size))
            found.size = size
        found.used = True
        return found.start

    def give(self, start: int) -> None:
        """Free what lies at `start`, as one with its free neighbours."""
        at = next(number for number, each in enumerate(self.pieces) if each.used and each.start == start)
        self.pieces[at].used = False
        for left in (at, at - 1):
            if 0 <= left < len(self.pieces) - 1 and not self.pieces[left].used and not self.pieces[left + 1].used:
                self.pieces[left].size += self.pieces.pop(left + 1).size
