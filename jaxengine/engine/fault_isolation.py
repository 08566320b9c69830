"""Finds the one request that makes a step fail, by bisection.

The requests of a failed step become a suspected group. Suspected groups run apart from all other requests, one step at
a time. A group whose step succeeds is cleared, a group whose step fails is split in two, and a request that fails alone
is the culprit. A batch of n > 1 requests with one culprit costs at most log2(n) + 1 failed steps.
"""

from collections.abc import Collection, Sequence

Group = set[int]  # request ids


class CulpritSearch:
    """The suspected groups. The last one runs next; the search is true while there is any."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def __bool__(self) -> bool:
        return bool(self.groups)

    def current(self, live: Collection[int]) -> Group | None:
        """The group to run now, None if nobody is suspected. Groups without a live request are dropped."""
        while self.groups and not any(request in live for request in self.groups[-1]):
            self.groups.pop()
        return self.groups[-1] if self.groups else None

    def step_succeeded(self, requests: Collection[int]) -> None:
        """A step of `requests` succeeded: the current group loses them."""
        if self.groups:
            self.groups[-1] -= set(requests)

    def step_failed(self, failed: Sequence[int]) -> int | None:
        """A step of requests `failed` failed. Returns the culprit, or None after splitting `failed` into two groups.

        A request is the culprit if it was suspected before and failed alone.
        """
        if self.groups:
            self.groups.pop()
            if len(failed) == 1:
                return failed[0]
        middle = len(failed) // 2
        self.groups += [group for group in (set(failed[middle:]), set(failed[:middle])) if group]
        return None
