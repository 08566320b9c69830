"""The one error of conversion: everything a user can cause ends in it, as a single line, never as a traceback.

The exit codes are those of sysexits.h where it has one, so that a supervisor can tell a bad file from a full disk.
"""

USAGE = 2
BAD_DATA = 65
UNREACHABLE = 69
CANNOT_CREATE = 73
IO = 74
NO_PERMISSION = 77


class CheckpointError(ValueError):
    """A checkpoint cannot be found, read, converted or written. The message names file, tensor, found and expected."""

    def __init__(self, message: str, *, exit_code: int = BAD_DATA) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code
