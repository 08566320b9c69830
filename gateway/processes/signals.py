"""SIGTERM, SIGINT and SIGHUP end a server in order, from its first moment to its last.

Before the event loop runs, and after it, the signals are blocked and the kernel keeps them. A signal that ended the
process between the creation of the runtime directory and the first event loop would leave the directory behind.

SIGHUP comes when the terminal is closed, or the connection to it breaks. Under nohup it is ignored, and stays so.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def heeded() -> list[signal.Signals]:
    """Those of `ENDS` that end this process: whoever started it may have it ignore SIGHUP."""
    return [each for each in ENDS if each is not signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


@contextmanager
def blocked() -> Iterator[None]:
    """Inside the block the signals wait for `delivered`. Those that still wait at its end are dropped.

    Enter it before the process has a second thread, to which the kernel would deliver the signals instead.
    """
    with kept_from_threads():
        try:
            yield
        finally:
            while signal.sigtimedwait(ENDS, 0):
                pass


@contextmanager
def kept_from_threads() -> Iterator[None]:
    """Threads that begin inside the block never get the signals: after `delivered` they would end the process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def delivered(listen: Callable[[int], None]) -> Iterator[None]:
    """Inside the block, which lies in `blocked`, the event loop calls `listen` with each signal, also those waiting."""
    for number in heeded():
        asyncio.get_running_loop().add_signal_handler(number, listen, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
