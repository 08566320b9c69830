"""SIGTERM and SIGINT end a server in order from its first moment to its last.

While nobody can listen yet, or any more, the kernel keeps them: one that came between the making of the server's
directory and its first event loop would leave the directory behind.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def held() -> Iterator[None]:
    """Inside they wait for `heard`. What nobody heard is dropped at the end: the end is what it asked for.

    Begun before the process has a second thread, which the kernel would choose instead.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        while signal.sigtimedwait(ENDS, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def heard(listen: Callable[[int], None]) -> Iterator[None]:
    """Inside, which is in `held`, the running event loop calls `listen` with those that came and that come."""
    for number in ENDS:
        asyncio.get_running_loop().add_signal_handler(number, listen, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
