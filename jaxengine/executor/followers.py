"""The other processes that share a model's devices, as an engine's runner sees them."""

from collections.abc import Container, Hashable, Sequence
from typing import Protocol

import numpy as np

from jaxengine.executor.device_state import Arrays


class Followers(Protocol):
    """Repeat the launches of this process on their own devices. What goes wrong with one of them ends this process."""

    def await_built(self, names: Sequence[Hashable]) -> None:
        """Wait until all of them have the executables `names`."""
        ...

    def has_built(self, name: Hashable) -> bool:
        """Whether all of them have executable `name`."""
        ...

    def tell(self, number: int, name: Hashable, arrays: Arrays) -> None:
        """Have all of them launch executable `name` with `arrays`, as launch `number`."""
        ...

    def compare(self, number: int, sampled: np.ndarray) -> None:
        """Have all of them compare what launch `number` has sampled: here it was `sampled`, i32 [N, …], ids first, and
        without padding.
        """
        ...


class Everywhere:
    """The names of executables that this process has, and all its followers too."""

    def __init__(self, here: Container[Hashable], followers: Followers) -> None:
        self._here, self._followers = here, followers

    def __contains__(self, name: Hashable) -> bool:
        return name in self._here and self._followers.has_built(name)
