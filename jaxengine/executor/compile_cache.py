"""JAX's persistent compilation cache, and the count of compiles that should not have happened."""

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import jax

from jaxengine import __version__

CHECKED = "checked"  # file whose time is that of the latest look for damaged entries
ZLIB = b"\x78"  # the first byte of what zlib compresses
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
HIT_EVENT = "/jax/compilation_cache/cache_hits"
KEPT_EVENT = "/jax/compilation_cache/cache_misses"  # sent when a new executable is written to the cache


def compile_cache_in(root: Path) -> Path:
    """The directory of this version's cache. Beside an old cache a new `ExecutableStore` would stay empty."""
    return root / "compiled" / __version__


def enable_compile_cache(directory: Path) -> None:
    """Keep every executable under `directory` (made private): the second start compiles nothing anew."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # then it is as JAX finds it
        _remove_damaged(directory)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _remove_damaged(directory: Path) -> None:
    """Remove what a full disk or a killed process has cut. JAX never does: it warns, compiles, and keeps no other
    (0.10), so that each later start would do so again. Entries are looked at once, at the start after they were made.
    """
    mark = directory / CHECKED
    before = mark.stat().st_mtime_ns if mark.exists() else 0
    made = [each for each in directory.glob("*-cache") if each.stat().st_mtime_ns >= before]
    mark.touch()
    for each in made:
        if not _is_whole(each.read_bytes()):
            each.unlink(missing_ok=True)


def _is_whole(entry: bytes) -> bool:
    """Of entries that zstandard has compressed, which JAX prefers where it is installed, only an empty one is told."""
    if not entry.startswith(ZLIB):
        return bool(entry)
    reader = zlib.decompressobj()
    try:
        reader.decompress(entry)
    except zlib.error:
        return False
    return reader.eof


class CompileCounter:
    """Counts backend compiles of this process, by JAX's own monitoring events; those of `expected` threads apart."""

    def __init__(self) -> None:
        self.unexpected = 0
        self._lock = Lock()
        self._thread = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        jax.monitoring.register_event_listener(self._listen_to_cache)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Compiles of this thread are meant to happen."""
        self._thread.expected, self._thread.hit, self._thread.new = True, False, False
        try:
            yield
        finally:
            self._thread.expected = False

    @property
    def hit(self) -> bool:
        """Whether a cache had what this thread last expected."""
        return getattr(self._thread, "hit", False)

    @property
    def new(self) -> bool:
        """Whether what this thread last expected was compiled, and not found in a cache of this process or on disk."""
        if jax.process_index() != 0:  # which JAX has keep nothing, and tells nothing of it
            return not self.hit
        return getattr(self._thread, "new", False)

    def found(self) -> None:
        """A cache other than JAX's has what this thread expects."""
        self._thread.hit = True

    def _listen_to_cache(self, event: str, **_: str | int) -> None:
        if event == HIT_EVENT:
            self.found()
        if event == KEPT_EVENT:
            self._thread.new = True

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILE_EVENT and not getattr(self._thread, "expected", False):
            with self._lock:
                self.unexpected += 1


COMPILES = CompileCounter()
