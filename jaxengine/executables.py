"""The compiled functions of an engine: the smallest useful set before it serves, the rest while it serves.

A step is padded to the smallest bucket that is compiled, so serving starts on the largest buckets alone and gets
faster as the others arrive. No request ever waits for a compile of its own. Compiling releases the GIL, so it runs in
threads; their stacks are raised because XLA's passes recurse over deep graphs.
"""

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from jaxengine.compile_cache import COMPILES

log = logging.getLogger(__name__)

STACK_BYTES = 64 << 20

Compiled = Callable[..., Any]
Progress = Callable[[int, int], None]


class Executables:
    """Executables by name, built by `jobs` in their order.

    The constructor returns once the `essential` ones are there, calling `progress(done, total)` for each.

    Raises:
        Exception: whatever an essential job raised. A later one that fails is logged, and its name stays missing.
    """

    def __init__(
        self, jobs: Mapping[Hashable, Callable[[], Compiled]], essential: Sequence[Hashable], progress: Progress
    ) -> None:
        self._jobs = jobs
        self._built: dict[Hashable, Compiled] = {}
        self._queue = deque([*essential, *(name for name in jobs if name not in essential)])
        self._changed = threading.Condition()
        self._failure: tuple[Hashable, Exception] | None = None
        self._closed = False
        self._threads = self._start(os.cpu_count() or 1)
        atexit.register(self.close)  # an interpreter that ends under a compiling thread aborts
        self._await_essential(set(essential), progress)

    def __getitem__(self, name: Hashable) -> Compiled:
        return self._built[name]

    def __contains__(self, name: Hashable) -> bool:
        return name in self._built

    def finish(self) -> None:
        """Wait until nothing is left to compile."""
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Start no further compile, and wait for those that run."""
        self._closed = True
        self.finish()
        atexit.unregister(self.close)

    def _start(self, count: int) -> list[threading.Thread]:
        before = threading.stack_size(STACK_BYTES)
        try:
            threads = [threading.Thread(target=self._work, name="compile", daemon=True) for _ in range(count)]
            for thread in threads:
                thread.start()
        finally:
            threading.stack_size(before)
        return threads

    def _work(self) -> None:
        with COMPILES.expected():
            while not self._closed:
                try:
                    name = self._queue.popleft()
                except IndexError:
                    return
                self._build(name)

    def _build(self, name: Hashable) -> None:
        try:
            built = self._jobs[name]()
        except Exception as error:
            log.error("compiling %s failed", name, exc_info=error)
            with self._changed:
                self._failure = self._failure or (name, error)
                self._changed.notify_all()
            return
        with self._changed:
            self._built[name] = built
            self._changed.notify_all()

    def _await_essential(self, essential: set[Hashable], progress: Progress) -> None:
        told = 0
        with self._changed:
            while True:
                done = len(essential & self._built.keys())
                if done > told:
                    told = done
                    progress(done, len(essential))
                if done == len(essential):
                    return
                if self._failure and self._failure[0] in essential:
                    self._closed = True
                    raise self._failure[1]
                self._changed.wait()
