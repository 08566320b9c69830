"""Files mapped into memory: only the pages that are used are read from disk.

One that may change is copied there instead: the kernel ends a process that reads a mapped page of a file that was cut.
"""

import mmap
import os
from pathlib import Path

from convert.errors import CheckpointError
from convert.formats.lfs_pointer import PROBLEM, is_pointer


def memory_map(path: Path, *, copied: bool = False) -> mmap.mmap:
    """The whole file: mapped read-only, or a copy of its own.

    Raises:
        CheckpointError: it cannot be read, is empty, or only stands for a file of Git LFS.
    """
    try:
        if is_pointer(path):
            raise CheckpointError(f"{path.name}: {PROBLEM}")
        with path.open("rb") as file:
            if not copied:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            copy = mmap.mmap(-1, os.fstat(file.fileno()).st_size)
            if file.readinto(copy) != len(copy):
                raise ValueError("it was cut meanwhile")
            return copy
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:  # mmap raises ValueError for an empty file
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
