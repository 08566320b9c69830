"""Snapshots: copies of what layers that keep states hold of a prefix, each in a slot of its own.

Attention keeps every token, so a prompt can start behind any page that is cached. A state is that behind the last token
alone. So where another prompt may want to start, a chunk of prefill ends, and the sequence's slot is copied to one that
no sequence has. It is found by the key of the prefix's last page (`jaxengine/rpc/page_keys.py`).

A copy is launched with the step that is planned, behind the tokens that it computes; copies back are launched in front
of them. So a snapshot that a step starts from may be taken over by a copy of the same step.

No JAX here.
"""

from collections import OrderedDict
from collections.abc import Iterable


class Snapshots:
    """
    Args:
        slots: of the device's arrays, behind those of sequences.
    """

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self.reset()

    def reset(self) -> None:
        """The slots' content is gone."""
        self.blank = list(self.slots[::-1])
        self.found: OrderedDict[bytes, int] = OrderedDict()  # slots by key, least recently used first

    def __contains__(self, key: bytes) -> bool:
        return key in self.found

    def use(self, key: bytes) -> int:
        """The slot of the snapshot under `key`, which there is."""
        self.found.move_to_end(key)
        return self.found[key]

    def take(self) -> int | None:
        """A slot to copy to: a blank one, or that of the snapshot whose use is the longest ago, which is found no more.
        None where copies are on their way to all of them.
        """
        if self.blank:
            return self.blank.pop()
        return self.found.popitem(last=False)[1] if self.found else None

    def keep(self, slot: int, key: bytes) -> None:
        """The copy to `slot`, which was taken, has been made. The first one under a key stays the one found."""
        if key in self.found:
            self.blank.append(slot)
        else:
            self.found[key] = slot

    def give_back(self, slot: int) -> None:
        """What was copied to `slot`, which was taken, is worth nothing."""
        self.blank.append(slot)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Their content cannot be trusted."""
        self.blank += [self.found.pop(key) for key in keys if key in self.found]
