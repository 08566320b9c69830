"""The threads that show life to the other processes of a group, and notice when one of them shows none.

A process that has ended closes its connections, and that is noticed at once. One that is stopped, or whose machine is
gone, says nothing at all, and then neither JAX nor NCCL raises (jax-ml/jax#38503).
"""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxengine.group.link import Link
from jaxengine.group.membership import BEAT_SECONDS
from jaxengine.group.wire import BrokenLink, Kind


@dataclass(frozen=True)
class Pulse:
    """Of this process.

    links: to the other processes as of now, by rank.
    patience: seconds without a sign of life after which a process counts as gone.
    number: what a sign of life tells: the last launch.
    silent: is called with a process that has shown no life for longer.
    """

    links: Callable[[], Mapping[int, Link]]
    patience: float
    number: Callable[[], int]
    silent: Callable[[int, Link], None]

    def start(self) -> None:
        """Two threads: to a process that takes nothing any more, showing life may wait for ever."""
        for name, work in (("pulse", self._show), ("watch", self._watch)):
            threading.Thread(target=work, name=name, daemon=True).start()

    @property
    def _pause(self) -> float:
        return min(BEAT_SECONDS, self.patience / 4)

    def _show(self) -> None:
        while True:
            for link in self.links().values():
                with contextlib.suppress(BrokenLink):  # whoever receives from it notices
                    link.send(Kind.BEAT, number=self.number())
            time.sleep(self._pause)

    def _watch(self) -> None:
        while True:
            before = time.monotonic()
            time.sleep(self._pause)
            if time.monotonic() - before > self.patience / 2:
                continue  # this process itself was stopped: what has come meanwhile is still to be read
            for rank, link in self.links().items():
                if link.silence > self.patience:
                    faulthandler.dump_traceback(file=sys.stderr)  # what this process waits for, perhaps
                    self.silent(rank, link)
