"""The one error of conversion. Everything that a user can cause ends in it, as a single line and never as a traceback.

The exit codes are those of sysexits.h where it has one, so that a supervisor can tell a bad file from a full disk.
"""

import os

USAGE = 2  # argparse's
BAD_DATA = os.EX_DATAERR
UNREACHABLE = os.EX_UNAVAILABLE
CANNOT_CREATE = os.EX_CANTCREAT
IO = os.EX_IOERR
NO_PERMISSION = os.EX_NOPERM
MAX_QUOTED = 300  # characters of another library's error


class CheckpointError(ValueError):
    """A checkpoint cannot be found, read, converted or written. The message names file, tensor, found and expected."""

    def __init__(self, message: str, *, exit_code: int = BAD_DATA) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code

    @classmethod
    def by(cls, error: Exception, where: object, what: str) -> "CheckpointError":
        """`what` went wrong at `where`; `error`, which another library raised, is quoted."""
        said = " ".join(str(error).split()) or type(error).__name__
        return cls(f"{where}: {what}: {said[:MAX_QUOTED]}")


class MissingAdapter(CheckpointError, LookupError):
    """No adapter of that name is there, or can be fetched. A LookupError for those who do not import this file."""
