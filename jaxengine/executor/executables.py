"""The compiled functions of an engine: the smallest useful set before it serves, the rest while it serves.

A step is padded to the smallest bucket that is ready, so serving starts on a few buckets and gets faster as the others
arrive. No request ever waits for a compile of its own. Compiling releases the GIL, so it runs in threads; their stacks
are raised because XLA's passes recurse over deep graphs. Where steps run on the same cores, another process compiles
what serving does not wait for.
"""

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from jaxengine.executor.compile_cache import COMPILES
from jaxengine.executor.compile_process import CompileProcess
from jaxengine.executor.deep_stacks import deep_stacks

logger = logging.getLogger(__name__)

NICE = 10

Compiled = Callable[..., Any]
Progress = Callable[[int, int], None]


class Executables:
    """Executables by name, built by `jobs`.

    The constructor builds the `essential` ones, calling `progress(done, total)` after each. `build_rest` starts on the
    others, in the order of `jobs`, and returns at once. `on_built` is called with each name that is built, by whichever
    thread built it.

    A later job that fails is tried once more when nothing else is compiled: XLA times products on operands of its own,
    and several threads at once may find no memory for theirs. If it fails again, its name stays missing.

    Raises:
        Exception: whatever an essential job raised.
    """

    def __init__(
        self,
        jobs: Mapping[Hashable, Callable[[], Compiled]],
        essential: Sequence[Hashable],
        progress: Progress,
        on_built: Callable[[Hashable], None] = lambda _: None,
    ) -> None:
        self._jobs = jobs
        self._on_built = on_built
        self._built: dict[Hashable, Compiled] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._failed: deque[Hashable] = deque()  # once
        self._working = 0  # threads that still take names
        self._at_work = threading.Lock()
        self._compile_process: CompileProcess | None = None
        self._cached = True  # all that was built
        cores = os.cpu_count() or 1
        with deep_stacks(), ThreadPoolExecutor(cores) as pool:
            waited = [pool.submit(self._build, name) for name in essential]
            progress(0, len(essential))
            for done, future in enumerate(as_completed(waited), 1):
                future.result()
                progress(done, len(essential))

    def __getitem__(self, name: Hashable) -> Compiled:
        return self._built[name]

    def __contains__(self, name: Hashable) -> bool:
        return name in self._built

    @property
    def built(self) -> list[Hashable]:
        """The names of those that there are by now."""
        return list(self._built)

    def build_rest(self, compile_process: CompileProcess | None = None) -> None:
        """Build what is missing, with low priority: requests are being served meanwhile.

        Args:
            compile_process: compiles what is not in the compile cache. Without it, threads of this process do, on half
                the cores.
        """
        queue = deque(name for name in self._jobs if name not in self._built)
        threads = 1 if compile_process else max(1, (os.cpu_count() or 1) // 2)
        self._compile_process = compile_process
        self._working = threads
        with deep_stacks():
            for _ in range(threads):
                thread = threading.Thread(target=self._work, args=(queue,), name="compile", daemon=True)
                self._threads.append(thread)
                thread.start()
        atexit.register(self.close)  # an interpreter that ends under a compiling thread aborts

    def finish(self) -> None:
        """Wait until `build_rest` is done. From then on nothing but its user keeps it."""
        for thread in self._threads:
            thread.join()
        atexit.unregister(self.close)

    def close(self) -> None:
        """Start no further compile, and wait for those that run."""
        self._closed = True
        if self._compile_process:
            self._compile_process.close()
        self.finish()

    def _work(self, queue: deque[Hashable]) -> None:
        os.nice(NICE)  # of this thread. It needs no right, as a fixed priority does if the process's own is lower still
        while queue and not self._closed:
            try:
                name = queue.popleft()
            except IndexError:  # another thread took the last one
                break
            asked = not self._cached and self._compile_process is not None and self._compile_process.compile(name)
            self._try(name)
            if asked and name in self._built and not COMPILES.hit:
                self._give_up_compile_process()
        self._try_again()
        if self._compile_process:
            self._compile_process.close()

    def _give_up_compile_process(self) -> None:
        """The cache lacks its results, so it may be full or read-only: everything would be compiled twice."""
        assert self._compile_process is not None
        logger.warning("the compile cache lacks what the compile process made; this process compiles the rest")
        self._compile_process.close()

    def _try(self, name: Hashable) -> None:
        try:
            self._build(name)
        except Exception as error:
            logger.warning("compiling %s failed and is tried again later: %s", name, error)
            self._failed.append(name)

    def _try_again(self) -> None:
        """By the last thread: those that are done before it leave all memory to it."""
        with self._at_work:
            self._working -= 1
            if self._working:
                return
        while self._failed and not self._closed:
            name = self._failed.popleft()
            try:
                self._build(name)
            except Exception as error:
                logger.error("compiling %s failed", name, exc_info=error)

    def _build(self, name: Hashable) -> None:
        with COMPILES.expected():
            self._built[name] = self._jobs[name]()
        self._cached = self._cached and COMPILES.hit
        self._on_built(name)
