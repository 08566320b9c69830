"""Standard input, output and error as our commands find them: perhaps closed, on a full disk, or unable to hold a name.

Whoever starts a command decides what its streams are. None of that may end it in a traceback, or let a file that it
opens become its stderr.
"""

import os
import sys
from typing import TextIO


def hold() -> None:
    """Put /dev/null where a stream is closed: the next socket or file would have its number, and libraries' words would
    go there. Names that the streams' encoding lacks are escaped, which Python does on stderr alone.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # has the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _escaping(sys.stdout or open(1, "w", closefd=False))  # noqa: SIM115
    sys.stderr = _escaping(sys.stderr or open(2, "w", closefd=False))  # noqa: SIM115


def say(words: str) -> int:
    """Print `words`, also to a reader that has had enough, as `head`; the exit code."""
    try:
        print(words, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
        if not isinstance(error, BrokenPipeError):
            print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
            return os.EX_IOERR
    return os.EX_OK


def _escaping(stream: TextIO) -> TextIO:
    if hasattr(stream, "reconfigure"):  # not where a test or a notebook has put another kind
        stream.reconfigure(errors="backslashreplace")
    return stream
