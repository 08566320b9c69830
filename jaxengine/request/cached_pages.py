"""What has become of the pages from which prompts can start, as `CachedPages` of `engine.proto` has it."""

from collections.abc import Sequence as Keys
from typing import NamedTuple


class CachedPages(NamedTuple):
    """The short keys of pages that can be found now and could not, perhaps, before; and of those that no longer can.

    reset: all that were told before are gone.
    """

    reset: bool
    cached: Keys[int]
    uncached: Keys[int]
