"""What is expensive and never differs, made once for all test processes and runs: compiled functions, what a compiler
found, fetched checkpoints. (Tiny checkpoints are written anew: that takes 20 to 40 ms each.)

An entry's name is a digest of everything it depends on, so no entry is ever stale. It appears by rename once it is
complete: of two processes that make the same entry, one works in vain. `pytest --cache-clear` removes the directory.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from convert.cache import cache_root
from tests.xla import FAST

CHECKOUT = Path(__file__).parents[1]
ROOT = cache_root() / "tests"  # decided before any test sets XDG_CACHE_HOME
COMPILED = ROOT / "compiled"  # JAX's persistent compilation cache, whose keys are JAX's own


def share_compiles() -> None:
    """Let JAX compile fast, and keep what takes 20 ms to compile, in this process and those it starts. Servers have a
    cache of their own.

    Before JAX is imported.
    """
    os.environ.setdefault("XLA_FLAGS", FAST)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def clear() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)


def digest(*parts: str | bytes | Path) -> str:
    """Of strings and of files' contents, in their order."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        total.update(hashlib.sha256(data).digest())
    return total.hexdigest()[:32]


def kept(kind: str, key: str, write: Callable[[Path], object]) -> Path:
    """The file or directory that `write(path)` makes where it is missing. Not to be written to."""
    entry = ROOT / kind / key
    if not entry.exists():
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{key}-", dir=entry.parent) as directory:
            made = Path(directory) / "made"
            write(made)
            try:
                made.rename(entry)
            except OSError:
                assert entry.is_dir(), entry  # another process was faster
    return entry


def found(kind: str, key: str, find: Callable[[], Any]) -> Any:
    """What `find()` returned when it was first called, by way of JSON."""
    return json.loads(kept(kind, key, lambda path: path.write_text(json.dumps(find()))).read_text())


def found_from_sources(kind: str, key: str, find: Callable[[], tuple[Any, Iterable[str]]]) -> Any:
    """What `find()` returned, by way of JSON, when the files that it named beside its answer were as they are now: all
    on which the answer depends besides `key`, relative to the checkout.

    Which files those are is known once it has been called, so the list that it named last is kept under `key`.
    """
    named = ROOT / kind / f"{key}.sources"
    if named.exists() and (entry := ROOT / kind / _with_contents(key, json.loads(named.read_text()))).exists():
        return json.loads(entry.read_text())
    begun = time.time()
    answer, sources = find()
    files = sorted(sources)
    if any((CHECKOUT / file).stat().st_mtime > begun for file in files):
        return answer  # one was edited meanwhile, perhaps after it was read
    kept(kind, _with_contents(key, files), lambda path: path.write_text(json.dumps(answer)))
    with tempfile.NamedTemporaryFile("w", dir=named.parent, delete=False) as written:
        json.dump(files, written)
    Path(written.name).rename(named)
    return answer


def _with_contents(key: str, files: list[str]) -> str:
    """`key` and what is in `files`, some of which may be gone."""
    present = [CHECKOUT / file for file in files if (CHECKOUT / file).exists()]
    return digest(key, *files, *present)
