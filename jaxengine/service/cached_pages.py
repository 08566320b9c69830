"""The pages from which prompts can start, as an engine tells of them, and what of that each session knows."""

from jaxengine.request.cached_pages import CachedPages
from jaxengine.rpc import engine_pb2 as pb

FEW = 10_000  # keys, which a session may always keep


class KnownPages:
    """The short keys of all pages that can be found now. Lives on the event loop."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def note(self, change: CachedPages) -> None:
        if change.reset:
            self.keys.clear()
        self.keys.difference_update(change.uncached)
        self.keys.update(change.cached)


class UntoldPages:
    """What a session has yet to be told of `known`: at first all of it.

    Only the keys are kept that have changed: what became of them is read from `known` when it is told. So changes need
    not be merged, and a session that does not read costs no more than one that is told all anew.
    """

    def __init__(self, known: KnownPages) -> None:
        self._known = known
        self._changed: set[int] = set()
        self._all = True

    def note(self, change: CachedPages) -> None:
        """`known` has noted `change`."""
        self._changed.update(change.uncached, change.cached)
        self._all |= change.reset or len(self._changed) > max(len(self._known.keys), FEW)
        if self._all:
            self._changed.clear()

    def tell(self, message: pb.StepEvents) -> None:
        """Tell all of it in `message`."""
        keys, changed = self._known.keys, self._changed
        if self._all:
            message.pages.reset = True
            message.pages.cached.extend(keys)
        elif changed:
            message.pages.cached.extend(changed & keys)
            message.pages.uncached.extend(changed - keys)
        self._changed, self._all = set(), False
