"""Files mapped into memory: only the pages that are used are read from disk."""

import mmap
from pathlib import Path

from convert.errors import CheckpointError


def memory_map(path: Path) -> mmap.mmap:
    """Map the whole file, read-only.

    Raises:
        CheckpointError: it cannot be read, or is empty.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # mmap raises ValueError for an empty file
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
