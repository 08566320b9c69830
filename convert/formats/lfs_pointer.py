"""Git LFS's pointers: what `git clone` leaves in the place of large files where Git LFS is not installed."""

from pathlib import Path

START = b"version https://git-lfs"
PROBLEM = "is a pointer of Git LFS, not the file itself: fetch that with git lfs pull, or name the model by its hub id"


def is_pointer(path: Path) -> bool:
    """Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(START)) == START
