"""Which adapter lies in which slot of the device's stacks. No JAX.

A slot is held by the sequences that run with its adapter. One that nobody holds keeps its adapter until another needs
the slot; the one unused for longest goes first.
"""

from jaxengine.architecture.adaptation import LoadedAdapter


class AdapterSlots:
    """The slots of one engine; adapters are told apart by their digests."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.reset()

    def reset(self) -> None:
        """The stacks are new, and nothing runs."""
        self.held = [0] * self.slots  # sequences that hold each slot
        self.slot_of: dict[bytes, int] = {}  # by digest, the one unused for longest first

    def has_room(self, adapter: LoadedAdapter) -> bool:
        """Whether `take` would find a slot."""
        return adapter.digest in self.slot_of or len(self.slot_of) < self.slots or 0 in self.held

    def take(self, adapter: LoadedAdapter) -> tuple[int, bool]:
        """A slot for one sequence more that runs with `adapter`, and whether it must be placed there first."""
        slot = self.slot_of.pop(adapter.digest, None)
        placed = slot is not None
        if slot is None:
            slot = self._free_slot()
        self.slot_of[adapter.digest] = slot
        self.held[slot] += 1
        return slot, not placed

    def release(self, slot: int) -> None:
        """A sequence that held `slot` runs no more."""
        self.held[slot] -= 1

    def _free_slot(self) -> int:
        if len(self.slot_of) < self.slots:
            return next(slot for slot in range(self.slots) if slot not in self.slot_of.values())
        digest = next(digest for digest, slot in self.slot_of.items() if not self.held[slot])
        return self.slot_of.pop(digest)
