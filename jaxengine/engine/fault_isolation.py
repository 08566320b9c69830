"""Finding the one request that makes a step fail, by halves.

The rows of a failed step become suspects. They run apart from everyone else, one step at a time: a group that gets
through a step is cleared, a group that fails again is split, and who fails twice, the last time alone, is guilty. A
batch of n > 1 costs at most log2(n) + 1 failed steps for one culprit.
"""

from collections.abc import Collection, Sequence

Group = set[int]  # request ids


class CulpritSearch:
    """Groups still to be run apart, the last one first."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def __bool__(self) -> bool:
        return bool(self.groups)

    def current(self, live: Collection[int]) -> Group | None:
        """The group to run now, or None when nobody is suspected; groups with no one alive are dropped."""
        while self.groups and not any(request in live for request in self.groups[-1]):
            self.groups.pop()
        return self.groups[-1] if self.groups else None

    def clear(self, requests: Collection[int]) -> None:
        """These got through a step."""
        if self.groups:
            self.groups[-1] -= set(requests)

    def blame(self, failed: Sequence[int]) -> int | None:
        """A step of `failed` requests failed: the guilty one if it was suspected and alone, else None: all split."""
        if self.groups:
            self.groups.pop()
            if len(failed) == 1:
                return failed[0]
        middle = len(failed) // 2
        self.groups += [group for group in (set(failed[middle:]), set(failed[:middle])) if group]
        return None
